//! The comparison of the deployed stack with this workspace: first the whole template, and then the
//! resources, which an operator may have changed by hand.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use aws_sdk_cloudformation::types::{StackDriftDetectionStatus, StackResourceDriftStatus};
use aws_sdk_dynamodb::types::{KeySchemaElement, TimeToLiveStatus};
use aws_sdk_eventbridge::types::RuleState;
use aws_sdk_sqs::types::QueueAttributeName as Attribute;
use backon::{ConstantBuilder, Retryable};
use clap::Args;
use ledgerline::{
    Aggregate, Aggregates, EventLog, EventTypes, StoreError, StreamId, Visitor,
    all::{newest, segments, void_entries},
    manifest::Manifests,
    shapes::unreadable,
};
use ledgerline_sam::{
    grants::{list, referred, resources},
    template::Source,
};
use serde_json::{Value, json};

use crate::{
    Out, Stack, concurrency,
    deployed::{self, Deployed},
    deployment::{Deployment, Function, LIVE},
};

/// The most commits that doctor reads, the newest ones of `$all`, to check that this code
/// understands them.
const NEWEST: usize = 1_000;
/// The most segments of `$all` that doctor reads to find them, the newest ones. A segment has one
/// entry at least.
const SEGMENTS: u64 = 200;
/// The number of commits that are read at once.
const AT_ONCE: usize = 100;
/// The most differing places that are named for one resource.
const NAMED: usize = 5;

/// The options of `ledger doctor`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Let CloudFormation compare every resource, such as roles and alarms, with its deployed form.
    /// This takes minutes, and needs the right to read all of them, such as ReadOnlyAccess.
    #[arg(long)]
    drift: bool,
}

/// The differences, and the number of compared resources of each kind.
#[derive(Debug, Default)]
struct Findings {
    looked: Vec<(&'static str, usize)>,
    wrong: Vec<Value>,
}

impl Findings {
    fn wrong(&mut self, of: &str, name: &str, is: impl Into<String>) {
        self.wrong.push(json!({ "of": of, "name": name, "wrong": is.into() }));
    }

    /// Reports a missing resource, unless it has a condition, which may not hold.
    fn absent(&mut self, of: &str, id: &str, resource: &Value) {
        if resource["Condition"].is_null() {
            self.wrong(of, id, "it is not deployed");
        }
    }
}

/// Compares the stack with the workspace. Returns whether there is no difference.
pub(crate) async fn run<L: Aggregates>(
    deployment: &Deployment,
    stack: &Stack,
    options: &Options,
    out: Out,
) -> Result<bool> {
    let busy = out.busy("comparing the deployed stack");
    let mut findings = Findings::default();
    let deployed = deployed::template(deployment).await?;
    let manifests = match &stack.manifest {
        Some(_) => Deployed::read(deployment, stack).await?.manifests,
        None => deployed::of_stack(&deployed)?,
    };
    // Without a workspace, the resources are compared with the deployed template.
    let template = match stack.template.exists() {
        true => {
            let ours = Source::read(&stack.template)?.json();
            compare_templates(&ours, &deployed, &mut findings);
            for function in deployed::differing(&manifests, &stack.template)? {
                findings.wrong("manifest", &function, "it is deployed differently");
            }
            ours
        }
        false => deployed,
    };
    functions(deployment, &template, &manifests, &mut findings).await?;
    tables(deployment, &template, &mut findings).await?;
    queues(deployment, &template, &mut findings).await?;
    let on_bus = bus(deployment, &mut findings).await?;
    if !deployment.is_local {
        rules(deployment, &on_bus, &mut findings).await?;
    }
    if options.drift {
        drift(deployment, &mut findings).await?;
    }
    let unseen = readable::<L>(deployment, &mut findings).await?;
    drop(busy);
    let looked: Vec<_> = findings
        .looked
        .iter()
        .map(|(what, number)| json!({ "looked": what, "number": number }))
        .collect();
    out.rows(&["looked", "number"], &looked);
    if !unseen.is_empty() {
        let unseen: Vec<_> = unseen.into_iter().collect();
        out.note(&format!(
            "\nevent types that doctor did not check, because none of the newest commits has them: {}",
            unseen.join(", ")
        ));
    }
    out.note("");
    if !stack.template.exists() {
        out.note(&format!(
            "there is no `{}`: doctor compares the resources with the deployed template\n",
            stack.template.display()
        ));
    }
    if findings.wrong.is_empty() {
        out.note(match options.drift {
            true => "nothing differs from this workspace",
            false => "nothing differs from this workspace; --drift also compares the deployed roles and alarms",
        });
    } else {
        out.rows(&["of", "name", "wrong"], &findings.wrong);
    }
    Ok(findings.wrong.is_empty())
}

// --- The template --------------------------------------------------------------------------------

/// Compares the deployed template with that of the workspace: resources with their policies,
/// filters, alarms and indexes, parameters, and the settings for all functions.
fn compare_templates(ours: &Value, deployed: &Value, findings: &mut Findings) {
    let ours = plain(ours);
    let deployed = plain(deployed);
    let ids = |template: &Value| -> BTreeSet<String> {
        template["Resources"].as_object().into_iter().flatten().map(|(id, _)| id.clone()).collect()
    };
    let known = ids(&ours);
    let there = ids(&deployed);
    findings.looked.push(("resources", known.len()));
    for id in known.difference(&there) {
        findings.wrong("template", id, "it is not deployed");
    }
    for id in there.difference(&known) {
        findings.wrong("template", id, "it is deployed, and this workspace does not have it");
    }
    for id in known.intersection(&there) {
        let mut places = Vec::new();
        differences(&ours["Resources"][id], &deployed["Resources"][id], String::new(), &mut places);
        if !places.is_empty() {
            let more = if places.len() > NAMED { ", and more" } else { "" };
            places.truncate(NAMED);
            findings.wrong(
                "template",
                id,
                format!("it is deployed differently: {}{more}", places.join(", ")),
            );
        }
    }
    for section in ["Conditions", "Globals", "Outputs", "Parameters", "Rules"] {
        let mut places = Vec::new();
        differences(&ours[section], &deployed[section], String::new(), &mut places);
        for place in places {
            findings.wrong("template", section, format!("it is deployed differently: {place}"));
        }
    }
}

/// Returns a template in a comparable form. It lacks the addresses of packages, and `Metadata`, to
/// which SAM adds notes. It has one spelling of `Fn::GetAtt`.
fn plain(template: &Value) -> Value {
    match template {
        Value::Object(map) => {
            let left_out = ["CodeUri", "Metadata"];
            let kept = map.iter().filter(|(key, _)| !left_out.contains(&key.as_str()));
            kept.map(|(key, value)| match value.as_str().filter(|_| key == "Fn::GetAtt") {
                Some(text) => (key.clone(), text.splitn(2, '.').map(Value::from).collect()),
                None => (key.clone(), plain(value)),
            })
            .collect()
        }
        Value::Array(list) => list.iter().map(plain).collect(),
        // CloudFormation treats every scalar as a text.
        Value::Bool(_) | Value::Number(_) => Value::String(template.to_string()),
        // A text of several lines may end with one more line feed.
        Value::String(text) => Value::String(text.trim_end().to_owned()),
        Value::Null => Value::Null,
    }
}

/// Collects the places in which two values differ.
fn differences(ours: &Value, deployed: &Value, at: String, places: &mut Vec<String>) {
    match (ours, deployed) {
        (Value::Object(one), Value::Object(other)) => {
            let keys: BTreeSet<_> = one.keys().chain(other.keys()).collect();
            for key in keys {
                let at = if at.is_empty() { key.clone() } else { format!("{at}.{key}") };
                differences(&ours[key], &deployed[key], at, places);
            }
        }
        (Value::Array(one), Value::Array(other)) if one.len() == other.len() => {
            for (place, (one, other)) in one.iter().zip(other).enumerate() {
                differences(one, other, format!("{at}[{place}]"), places);
            }
        }
        (one, other) if one == other => {}
        _ => places.push(at),
    }
}

// --- Functions -----------------------------------------------------------------------------------

/// Compares the functions with the template, and their variables with their manifests. On AWS, it
/// also compares their aliases, reservations and event sources.
async fn functions(
    deployment: &Deployment,
    template: &Value,
    manifests: &Manifests,
    findings: &mut Findings,
) -> Result<()> {
    let (mut looked, mut mappings) = (0, 0);
    for (id, function) in resources(template, &["AWS::Serverless::Function"]) {
        let Ok(Function { name, variables, is_newest }) = deployment.function(id) else {
            findings.absent("function", id, function);
            continue;
        };
        looked += 1;
        let binary = function["Metadata"]["BuildProperties"]["Binary"].as_str().unwrap_or_default();
        let declared = manifests.get(binary).into_iter().flat_map(|manifest| &manifest.variables);
        let declared = declared.map(|variable| &**variable);
        let missing: Vec<_> =
            declared.filter(|variable| !variables.contains_key(*variable)).collect();
        if !missing.is_empty() {
            findings.wrong(
                "function",
                id,
                format!("it lacks the variables {}, which its code needs", missing.join(", ")),
            );
        }
        match is_newest {
            Ok(true) => {}
            Ok(false) => findings.wrong("function", id, "the live version has other variables than the last deployment: run `ledger release promote` or `ledger release rollback`, or leave it"),
            Err(error) => findings.wrong("function", id, format!("the alias {LIVE}, which receives the events: {error}")),
        }
        // The local stack reads the sources from the template, and limits no function.
        if !deployment.is_local {
            match concurrency::reserved_for(deployment, id).await {
                Ok(Some(0)) => findings.wrong(
                    "function",
                    id,
                    format!(
                        "it is stopped: run `ledger concurrency {id} --release --write --why …`"
                    ),
                ),
                Ok(Some(_) | None) => {}
                Err(error) => findings.wrong("function", id, format!("{error:#}")),
            }
            mappings +=
                sources(deployment, id, name, &function["Properties"]["Events"], findings).await?;
        }
    }
    findings.looked.push(("functions", looked));
    if !deployment.is_local {
        findings.looked.push(("event source mappings", mappings));
    }
    Ok(())
}

/// Compares the event source mappings of a function with the template: their number, their states
/// and their filters. Returns their number.
async fn sources(
    deployment: &Deployment,
    id: &str,
    name: &str,
    events: &Value,
    findings: &mut Findings,
) -> Result<usize> {
    let wanted = events.as_object().into_iter().flatten();
    let wanted: Vec<_> = wanted
        .filter(|(_, event)| event["Type"] == "DynamoDB" || event["Type"] == "SQS")
        .map(|(_, event)| &event["Properties"])
        .collect();
    if wanted.is_empty() {
        return Ok(0);
    }
    let list =
        deployment.lambda.list_event_source_mappings().function_name(format!("{name}:{LIVE}"));
    let mut items = list.into_paginator().items().send();
    let mut found = Vec::new();
    while let Some(mapping) = items.next().await {
        found.push(mapping.with_context(|| format!("the sources of {id}"))?);
    }
    if found.len() != wanted.len() {
        let message = format!(
            "it receives events from {} streams and queues, not {}",
            found.len(),
            wanted.len()
        );
        findings.wrong("function", id, message);
    }
    let urls = deployment.queues();
    for mapping in &found {
        let state = mapping.state.as_deref().unwrap_or_default();
        if !["Enabled", "Enabling", "Updating", "Creating"].contains(&state) {
            findings.wrong("function", id, format!("a source of its events is {state}"));
        }
        // The name identifies a queue. The only stream is that of the log.
        let arn = mapping.event_source_arn().unwrap_or_default();
        let is_of_it = |wanted: &&&Value| match referred(&wanted["Queue"]) {
            Some(queue) => {
                urls.get(queue).and_then(|url| url.rsplit('/').next()) == arn.rsplit(':').next()
            }
            None => arn.contains(":table/"),
        };
        let Some(wanted) = wanted.iter().find(is_of_it) else {
            findings.wrong(
                "function",
                id,
                format!("it receives events from {arn}, which is no source of it in the template"),
            );
            continue;
        };
        let filters =
            mapping.filter_criteria.as_ref().map(|criteria| criteria.filters()).unwrap_or_default();
        let there: BTreeSet<_> =
            filters.iter().map(|filter| normal(filter.pattern().unwrap_or_default())).collect();
        let wanted: BTreeSet<_> =
            list_of_patterns(&wanted["FilterCriteria"]["Filters"]).into_iter().collect();
        if there != wanted {
            findings.wrong(
                "function",
                id,
                format!("a source of its events has the filters {there:?}, not {wanted:?}"),
            );
        }
    }
    Ok(found.len())
}

fn list_of_patterns(filters: &Value) -> Vec<String> {
    list(filters).into_iter().filter_map(|filter| filter["Pattern"].as_str().map(normal)).collect()
}

/// Returns a pattern without its white space.
fn normal(pattern: &str) -> String {
    serde_json::from_str::<Value>(pattern)
        .map_or_else(|_| pattern.to_owned(), |pattern| pattern.to_string())
}

// --- Tables --------------------------------------------------------------------------------------

/// Compares the tables: keys, indexes, streams and times to live. On AWS, it also compares their
/// backups.
async fn tables(deployment: &Deployment, template: &Value, findings: &mut Findings) -> Result<()> {
    let mut looked = 0;
    for (id, table) in resources(template, &["AWS::DynamoDB::Table"]) {
        let Some(name) = deployment.table_named(id) else {
            findings.absent("table", id, table);
            continue;
        };
        looked += 1;
        let properties = &table["Properties"];
        let found = deployment.dynamodb.describe_table().table_name(name).send().await;
        let found = match found.map(|found| found.table) {
            Ok(Some(found)) => found,
            Ok(None) => continue,
            Err(error) => {
                findings.wrong("table", id, format!("{name}: {:#}", anyhow::Error::from(error)));
                continue;
            }
        };
        let keys = schema(found.key_schema());
        if keys != list_of_keys(&properties["KeySchema"]) {
            findings.wrong(
                "table",
                id,
                format!("its keys are {}, not those of the template", keys.join(", ")),
            );
        }
        for index in list(&properties["GlobalSecondaryIndexes"]) {
            let index_name = index["IndexName"].as_str().unwrap_or_default();
            let there = found
                .global_secondary_indexes()
                .iter()
                .find(|there| there.index_name() == Some(index_name));
            let Some(there) = there else {
                findings.wrong("table", id, format!("it has no index {index_name}"));
                continue;
            };
            let projection = there.projection().and_then(|projection| projection.projection_type());
            if schema(there.key_schema()) != list_of_keys(&index["KeySchema"])
                || projection.map(|projection| projection.as_str())
                    != index["Projection"]["ProjectionType"].as_str()
            {
                findings.wrong(
                    "table",
                    id,
                    format!("its index {index_name} has other keys, or another projection"),
                );
            }
        }
        let view = found.stream_specification().and_then(|stream| stream.stream_view_type());
        let wanted = properties["StreamSpecification"]["StreamViewType"].as_str();
        if view.map(|view| view.as_str()) != wanted {
            findings.wrong("table", id, format!("its stream has {view:?}, not {wanted:?}"));
        }
        let ttl = deployment
            .dynamodb
            .describe_time_to_live()
            .table_name(name)
            .send()
            .await?
            .time_to_live_description;
        let on = |status: &TimeToLiveStatus| {
            [TimeToLiveStatus::Enabled, TimeToLiveStatus::Enabling].contains(status)
        };
        let ttl = ttl.filter(|ttl| ttl.time_to_live_status().is_some_and(on));
        let attribute = ttl.as_ref().and_then(|ttl| ttl.attribute_name());
        if attribute != properties["TimeToLiveSpecification"]["AttributeName"].as_str() {
            findings.wrong("table", id, format!("its items expire by {attribute:?}"));
        }
        if !deployment.is_local
            && properties["PointInTimeRecoverySpecification"]["PointInTimeRecoveryEnabled"] == true
        {
            let backups =
                deployment.dynamodb.describe_continuous_backups().table_name(name).send().await?;
            let backups = backups.continuous_backups_description;
            let point = backups.and_then(|backups| backups.point_in_time_recovery_description);
            if point
                .and_then(|point| point.point_in_time_recovery_status)
                .is_none_or(|is| is.as_str() != "ENABLED")
            {
                findings.wrong("table", id, "it has no point-in-time recovery");
            }
        }
    }
    findings.looked.push(("tables", looked));
    Ok(())
}

fn schema(keys: &[KeySchemaElement]) -> Vec<String> {
    keys.iter().map(|key| format!("{} {}", key.attribute_name(), key.key_type().as_str())).collect()
}

fn list_of_keys(keys: &Value) -> Vec<String> {
    let text = |key: &Value, name: &str| key[name].as_str().unwrap_or_default().to_owned();
    list(keys)
        .into_iter()
        .map(|key| format!("{} {}", text(key, "AttributeName"), text(key, "KeyType")))
        .collect()
}

// --- Queues --------------------------------------------------------------------------------------

/// Compares the queues: their dead-letter queues, and the number of attempts before a message goes
/// there.
async fn queues(deployment: &Deployment, template: &Value, findings: &mut Findings) -> Result<()> {
    let urls = deployment.queues();
    let mut looked = 0;
    for (id, queue) in resources(template, &["AWS::SQS::Queue"]) {
        let Some(url) = urls.get(id) else {
            findings.absent("queue", id, queue);
            continue;
        };
        looked += 1;
        let get =
            deployment.sqs.get_queue_attributes().queue_url(url).attribute_names(Attribute::All);
        let found = match get.send().await {
            Ok(found) => found.attributes.unwrap_or_default(),
            Err(error) => {
                findings.wrong("queue", id, format!("{:#}", anyhow::Error::from(error)));
                continue;
            }
        };
        let policy = found
            .get(&Attribute::RedrivePolicy)
            .and_then(|policy| serde_json::from_str(policy).ok());
        let policy: Value = policy.unwrap_or_default();
        let wanted = &queue["Properties"]["RedrivePolicy"];
        let given_up_to =
            policy["deadLetterTargetArn"].as_str().and_then(|arn| arn.rsplit(':').next());
        let target = referred(&wanted["deadLetterTargetArn"]).and_then(|target| urls.get(target));
        let target = target.and_then(|url| url.rsplit('/').next());
        if given_up_to != target {
            findings.wrong(
                "queue",
                id,
                format!("its dead letters go to {given_up_to:?}, not to {target:?}"),
            );
        }
        // The number may be a text on either side.
        let number = |number: &Value| number.as_u64().or_else(|| number.as_str()?.parse().ok());
        let tries = number(&policy["maxReceiveCount"]);
        let wanted = number(&wanted["maxReceiveCount"]);
        if wanted.is_some() && tries != wanted {
            findings.wrong("queue", id, format!("it gives a message up after {tries:?} attempts"));
        }
    }
    findings.looked.push(("queues", looked));
    Ok(())
}

// --- Rules and drift -----------------------------------------------------------------------------

/// Checks that the rules are enabled: those of schedules, which start functions, and those that
/// route states to views.
async fn rules(
    deployment: &Deployment,
    on_bus: &BTreeMap<String, Option<RuleState>>,
    findings: &mut Findings,
) -> Result<()> {
    let mut looked = 0;
    for (id, rule) in deployment.of_type("AWS::Events::Rule") {
        looked += 1;
        // The id of a rule that is not on the default bus begins with the name of its bus.
        let (bus, name) =
            rule.split_once('|').map_or((None, rule), |(bus, name)| (Some(bus), name));
        if let Some(state) = on_bus.get(name) {
            if *state != Some(RuleState::Enabled) {
                findings.wrong("rule", id, format!("it is {state:?}"));
            }
            continue;
        }
        let describe = deployment
            .events
            .describe_rule()
            .name(name)
            .set_event_bus_name(bus.map(ToOwned::to_owned));
        match describe.send().await {
            Ok(found) if found.state() == Some(&RuleState::Enabled) => {}
            Ok(found) => findings.wrong("rule", id, format!("it is {:?}", found.state())),
            Err(error) => findings.wrong("rule", id, format!("{:#}", anyhow::Error::from(error))),
        }
    }
    findings.looked.push(("rules", looked));
    Ok(())
}

/// Finds rules on the bus, also those of other stacks, that match event types which the fanout does
/// not send. Returns the rules with their states.
async fn bus(
    deployment: &Deployment,
    findings: &mut Findings,
) -> Result<BTreeMap<String, Option<RuleState>>> {
    // Without the variable, the fanout sends all types.
    let fanout = deployment.function("FanoutFunction").ok();
    let sent =
        fanout.and_then(|fanout| fanout.variables.get("BUS_EVENTS")).map_or("*", String::as_str);
    let sent: BTreeSet<_> = sent.split_whitespace().collect();
    let mut rules = BTreeMap::new();
    for (id, name) in deployment.of_type("AWS::Events::EventBus") {
        let mut after = None;
        loop {
            let list = deployment.events.list_rules().event_bus_name(name).set_next_token(after);
            let page = match list.send().await {
                Ok(page) => page,
                Err(error) => {
                    findings.wrong("bus", id, format!("{:#}", anyhow::Error::from(error)));
                    break;
                }
            };
            // A service manages the rules for an archive of the bus.
            for rule in page.rules().iter().filter(|rule| rule.managed_by().is_none()) {
                rules.insert(rule.name().unwrap_or_default().to_owned(), rule.state().cloned());
                let pattern =
                    rule.event_pattern().and_then(|pattern| serde_json::from_str(pattern).ok());
                if let Some(wrong) = unsent(&pattern.unwrap_or_default(), &sent) {
                    findings.wrong("rule", rule.name().unwrap_or_default(), wrong);
                }
            }
            after = page.next_token;
            if after.is_none() {
                break;
            }
        }
    }
    findings.looked.push(("rules on the bus", rules.len()));
    Ok(rules)
}

/// Returns the problem of a rule that matches event types which the fanout does not send.
fn unsent(pattern: &Value, sent: &BTreeSet<&str>) -> Option<String> {
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

/// Makes CloudFormation compare the resources with their deployed form, and waits for the result.
async fn drift(deployment: &Deployment, findings: &mut Findings) -> Result<()> {
    let client = &deployment.cloudformation;
    let begun = client.detect_stack_drift().stack_name(&deployment.stack).send().await;
    let id = begun
        .context("CloudFormation cannot begin the drift detection")?
        .stack_drift_detection_id
        .unwrap_or_default();
    // Only a comparison in progress is an error that is retried. Any other status, and a refused
    // call, end the retries.
    let ask = async || {
        let status = client
            .describe_stack_drift_detection_status()
            .stack_drift_detection_id(&id)
            .send()
            .await;
        match status {
            Ok(status)
                if status.detection_status()
                    == Some(&StackDriftDetectionStatus::DetectionInProgress) =>
            {
                bail!("CloudFormation still detects drift: run the command again later")
            }
            other => Ok(other),
        }
    };
    let often = ConstantBuilder::default().with_delay(Duration::from_secs(2)).with_max_times(300);
    let status = ask.retry(often).sleep(tokio::time::sleep).await?;
    // CloudFormation may fail to compare some resources. The results for the others are reported.
    if let Some(reason) = status
        .context("the progress of the drift detection cannot be read")?
        .detection_status_reason
    {
        findings.wrong("drift", &deployment.stack, reason);
    }
    let changed = [StackResourceDriftStatus::Modified, StackResourceDriftStatus::Deleted];
    let mut after = None;
    loop {
        let list = client.describe_stack_resource_drifts().stack_name(&deployment.stack);
        let list = list
            .set_stack_resource_drift_status_filters(Some(changed.to_vec()))
            .set_next_token(after);
        let page = list.send().await.context("the result of the drift detection cannot be read")?;
        for drift in page.stack_resource_drifts() {
            let id = drift.logical_resource_id().unwrap_or_default();
            let places: Vec<_> =
                drift.property_differences().iter().filter_map(|one| one.property_path()).collect();
            let is = drift
                .stack_resource_drift_status()
                .map(|status| status.as_str())
                .unwrap_or_default();
            findings.wrong("drift", id, format!("{is} {}", places.join(" ")));
        }
        after = page.next_token;
        if after.is_none() {
            return Ok(());
        }
    }
}

// --- The log -------------------------------------------------------------------------------------

/// Checks that this code reads the newest commits, which newer code may have written. Returns the
/// event types that none of them has, each with its category.
async fn readable<L: Aggregates>(
    deployment: &Deployment,
    findings: &mut Findings,
) -> Result<BTreeSet<String>> {
    let mut unseen = types::<L>();
    let Some((sequence, partitions)) = deployment.order() else { return Ok(unseen) };
    let log = deployment.log()?;
    let mut looked = 0;
    for partition in 0..partitions {
        let Some(newest) = newest(&sequence, partition).await? else { continue };
        let mut entries = Vec::new();
        let mut after = newest.number.saturating_sub(SEGMENTS);
        while after < newest.number {
            let (page, _) = segments(&sequence, partition, after).await?;
            after = page.last().map_or(newest.number, |last| last.number);
            entries.extend(page.into_iter().flat_map(|segment| segment.entries));
        }
        let voids = void_entries(&sequence, partition).await?;
        // A version with a void entry may have a second entry.
        let mut names = BTreeSet::new();
        let entries: Vec<_> =
            entries.iter().rev().filter(|entry| names.insert(*entry)).take(NEWEST).collect();
        for part in entries.chunks(AT_ONCE) {
            let names: Vec<(&StreamId, u64)> =
                part.iter().map(|entry| (&entry.stream, entry.version)).collect();
            for (entry, commit) in part.iter().zip(log.get_all(&names).await?) {
                looked += 1;
                let name = format!("{} {}", entry.stream, entry.version);
                match commit {
                    Ok(Some(commit)) => {
                        let category = commit.stream.category();
                        for event in &commit.events {
                            unseen.remove(&format!("{category} {}", event.event_type));
                        }
                        if let Some(problem) = unreadable::<L>(&commit) {
                            findings.wrong("log", &name, problem);
                        }
                    }
                    Ok(None) if voids.contains(*entry) => {}
                    Ok(None) => findings.wrong("log", &name, "it is missing, and $all names it"),
                    Err(StoreError::Corrupt { reason, .. }) => findings.wrong("log", &name, reason),
                    Err(error @ (StoreError::Throttled(_) | StoreError::Unavailable(_))) => {
                        return Err(error.into());
                    }
                }
            }
        }
    }
    findings.looked.push(("newest commits", looked));
    Ok(unseen)
}

/// Returns the event types of these aggregates, each with its category.
fn types<L: Aggregates>() -> BTreeSet<String> {
    struct Types(BTreeSet<String>);
    impl Visitor for Types {
        fn visit<A: Aggregate>(&mut self) {
            let names = A::Event::TYPES.iter().flat_map(|known| known.names());
            self.0.extend(names.map(|name| format!("{} {name}", A::CATEGORY)));
        }
    }
    let mut types = Types(BTreeSet::new());
    L::visit(&mut types);
    types.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_with_types_that_the_bus_does_not_carry_is_found() {
        let sent = BTreeSet::from(["Filled", "Drained"]);
        let pattern = |types: Value| json!({ "source": ["tanks.tank"], "detail-type": types });
        assert_eq!(unsent(&pattern(json!(["Filled"])), &sent), None);
        for (wants, says) in [
            (pattern(json!(["Filled", "Opened"])), "Opened is not put on the bus"),
            (pattern(json!([{ "prefix": "Fill" }])), "it names no detail-type"),
            (json!({ "source": ["tanks.tank"] }), "it names no detail-type"),
        ] {
            assert!(unsent(&wants, &sent).unwrap().contains(says), "{wants}");
            assert_eq!(unsent(&wants, &BTreeSet::from(["*"])), None, "{wants}");
        }
    }

    #[test]
    fn templates_are_compared_by_their_values_and_not_by_their_layout() {
        let parse =
            |text: &str| plain(&Source::parse(text, std::path::Path::new("t")).unwrap().json());
        let ours = parse(
            "Resources:\n  A:\n    Type: AWS::Serverless::Function\n    Metadata: { BuildMethod: x }\n    Properties:\n      Role: !GetAtt R.Arn\n      Timeout: 60\n      Text: |\n        a\n",
        );
        let deployed = "Resources:\n  A:\n    Type: AWS::Serverless::Function\n    Properties:\n      Role:\n        Fn::GetAtt: [R, Arn]\n      Timeout: '60'\n      CodeUri: s3://x\n      Text: a\n";
        let found = |deployed: &str| {
            let mut places = Vec::new();
            differences(&ours, &parse(deployed), String::new(), &mut places);
            places
        };
        assert_eq!(found(deployed), Vec::<String>::new());
        assert_eq!(found(&deployed.replace("'60'", "61")), ["Resources.A.Properties.Timeout"]);
        assert_eq!(
            found(&deployed.replace("R, Arn", "S, Arn")),
            ["Resources.A.Properties.Role.Fn::GetAtt[0]"]
        );
        assert_eq!(
            found(&format!("{deployed}      Layers: [x]\n")),
            ["Resources.A.Properties.Layers"]
        );
    }
}
