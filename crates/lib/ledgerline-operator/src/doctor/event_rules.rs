//! The examination of the rules on the buses: of the stack's own ones, and of those that match the
//! events of its bus.

use std::collections::{BTreeMap, BTreeSet, btree_map::Entry};

use anyhow::Result;
use aws_sdk_eventbridge::types::{Rule, RuleState};
use ledgerline_sam::lookup::list;
use serde_json::Value;

use super::{Findings, targets::check_targets};
use crate::deployment::Deployment;

/// Checks that the rules are enabled: those of schedules, which start functions, and those that
/// route states to views.
pub(super) async fn check_rules(deployment: &Deployment, findings: &mut Findings) {
    let rules: Vec<_> = deployment.resources_of_type("AWS::Events::Rule").collect();
    let own = deployment.resources_of_type("AWS::Events::EventBus").map(|(_, name)| Some(name));
    let named = rules.iter().map(|(_, rule)| bus_and_name(rule).0);
    let mut lists = BTreeMap::new();
    for bus in own.chain(named).chain([None]) {
        if let Entry::Vacant(list) = lists.entry(bus) {
            list.insert(list_rules(deployment, bus).await);
        }
    }
    for (id, rule) in &rules {
        let (bus, name) = bus_and_name(rule);
        // Emulators leave the bus out of the id.
        let lists = lists.iter().filter(|(found, _)| bus.is_none() || **found == bus);
        if let Some(wrong) = state_problem(lists.map(|(_, list)| list), name) {
            findings.add("rule", id, wrong);
        }
    }
    findings.examined.push(("rules", rules.len()));
}

/// Returns the parts of a rule's id: the bus, also of another stack, if it is not the default
/// one, and the name.
fn bus_and_name(rule: &str) -> (Option<&str>, &str) {
    rule.split_once('|').map_or((None, rule), |(bus, name)| (Some(bus), name))
}

/// Returns the problem of a rule that no list has, or that is not enabled.
fn state_problem<'a>(
    lists: impl Iterator<Item = &'a Result<Vec<Rule>>> + Clone,
    name: &str,
) -> Option<String> {
    let mut rules = lists.clone().flatten().flatten();
    match rules.find(|rule| rule.name() == Some(name)).map(Rule::state) {
        Some(Some(RuleState::Enabled)) => return None,
        Some(state) => return Some(format!("it is {state:?}")),
        None => {}
    }
    let mut errors = lists.filter_map(|list| list.as_ref().err());
    let error = errors.next().map(|error| format!("{error:#}"));
    Some(error.unwrap_or_else(|| "its bus does not have it: it was deleted by hand".to_owned()))
}

/// Finds rules on the bus, also those of other stacks, that match event types which the fanout does
/// not send, or that have targets which do not exist.
pub(super) async fn check_bus(deployment: &Deployment, findings: &mut Findings) {
    // Without the variable, the fanout sends all types.
    let fanout = deployment.function("FanoutFunction").ok();
    let sent =
        fanout.and_then(|fanout| fanout.variables.get("BUS_EVENTS")).map_or("*", String::as_str);
    let sent: BTreeSet<_> = sent.split_whitespace().collect();
    let mut examined = 0;
    for (id, name) in deployment.resources_of_type("AWS::Events::EventBus") {
        let found = match list_rules(deployment, Some(name)).await {
            Ok(found) => found,
            Err(error) => {
                findings.add("bus", id, format!("{error:#}"));
                continue;
            }
        };
        // A service manages the rules for an archive of the bus.
        let rules = found.iter().filter(|rule| rule.managed_by().is_none());
        if let Err(error) = check_targets(deployment, name, rules.clone(), findings).await {
            findings.add("bus", id, format!("the targets of its rules cannot be read: {error:#}"));
        }
        for rule in rules {
            let pattern =
                rule.event_pattern().and_then(|pattern| serde_json::from_str(pattern).ok());
            if let Some(wrong) = unsent_types(&pattern.unwrap_or_default(), &sent) {
                findings.add("rule", rule.name().unwrap_or_default(), wrong);
            }
            examined += 1;
        }
    }
    findings.examined.push(("rules on the bus", examined));
}

/// Returns the rules on a bus, or on the default one.
async fn list_rules(deployment: &Deployment, bus: Option<&str>) -> Result<Vec<Rule>> {
    let (mut rules, mut after) = (Vec::new(), None);
    loop {
        let list = deployment.events.list_rules().set_event_bus_name(bus.map(ToOwned::to_owned));
        let page = list.set_next_token(after).send().await?;
        rules.extend(page.rules.unwrap_or_default());
        after = page.next_token;
        if after.is_none() {
            return Ok(rules);
        }
    }
}

/// Returns the problem of a rule that matches event types which the fanout does not send.
fn unsent_types(pattern: &Value, sent: &BTreeSet<&str>) -> Option<String> {
    const OPEN: &str = "deploy with BusEvents=*, or add the types to BusEvents";
    if sent.contains("*") {
        return None;
    }
    let types = list(&pattern["detail-type"]);
    // A pattern may match a prefix or something else, instead of naming types.
    let named: Option<Vec<_>> = types.iter().map(|name| name.as_str()).collect();
    let Some(named) = named.filter(|named| !named.is_empty()) else {
        return Some(format!("it names no detail-type, and not all events are on the bus: {OPEN}"));
    };
    let missing: Vec<_> = named.into_iter().filter(|name| !sent.contains(name)).collect();
    (!missing.is_empty()).then(|| format!("{} is not put on the bus: {OPEN}", missing.join(", ")))
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_rule_that_is_off_or_that_its_bus_does_not_have_is_found() {
        let rule = |name, state| Rule::builder().name(name).state(state).build();
        let rules = vec![rule("on", RuleState::Enabled), rule("off", RuleState::Disabled)];
        let lists = [Ok(Vec::new()), Ok(rules)];
        let problem = |name| state_problem(lists.iter(), name);
        assert_eq!(problem("on"), None);
        assert!(problem("off").unwrap().contains("Disabled"));
        assert!(problem("gone").unwrap().contains("deleted by hand"));
        let unread = [Err(anyhow!("AccessDenied"))];
        assert_eq!(state_problem(unread.iter(), "on").unwrap(), "AccessDenied");
    }

    #[test]
    fn a_rule_with_types_that_the_bus_does_not_carry_is_found() {
        let sent = BTreeSet::from(["Filled", "Drained"]);
        let pattern = |types: Value| json!({ "source": ["tanks.tank"], "detail-type": types });
        assert_eq!(unsent_types(&pattern(json!(["Filled"])), &sent), None);
        for (wants, says) in [
            (pattern(json!(["Filled", "Opened"])), "Opened is not put on the bus"),
            (pattern(json!([{ "prefix": "Fill" }])), "it names no detail-type"),
            (json!({ "source": ["tanks.tank"] }), "it names no detail-type"),
        ] {
            assert!(unsent_types(&wants, &sent).unwrap().contains(says), "{wants}");
            assert_eq!(unsent_types(&wants, &BTreeSet::from(["*"])), None, "{wants}");
        }
    }
}
