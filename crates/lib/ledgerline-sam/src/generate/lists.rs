//! The variables and lists that name functions, queues and events.

use std::collections::BTreeSet;

use ledgerline::manifest::{Action, Name, Scope, Source, SubscriberKind};

use crate::{
    functions::{Function, Template},
    lookup::{list, logical_id},
};

/// The variables that are generated blocks.
pub(super) const VARIABLES: [&str; 5] =
    ["STATE_VIEWS", "LOG_QUEUES", "SUBSCRIPTIONS", "SUBSCRIBERS", "BUS_EVENTS"];

/// The loops whose lists are generated blocks.
pub(super) const LOOPS: [&str; 6] =
    ["Urls", "Commands", "StateViews", "LogViews", "Queues", "Rules"];

/// The lines of a variable; `None` if there is no such variable.
pub(super) fn variable(template: &Template<'_>, name: &str) -> Option<Vec<String>> {
    if name == "BUS_EVENTS" {
        return Some(bus_events(template));
    }
    let line: fn(&Template<'_>, &Function<'_>) -> Option<String> = match name {
        "STATE_VIEWS" => state_view,
        "LOG_QUEUES" => log_queue,
        "SUBSCRIPTIONS" => subscription,
        "SUBSCRIBERS" => |template, function| template.subscriber_line(function),
        _ => return None,
    };
    Some(sort(template.functions.iter().filter_map(|function| line(template, function))))
}

/// The types of events that the fanout puts on the bus: those of the parameter, and those of the
/// rules of the template.
fn bus_events(template: &Template<'_>) -> Vec<String> {
    let of_parameter =
        template.json["Parameters"]["BusEvents"].is_object().then(|| "${BusEvents}".to_owned());
    let of_rules = template.functions.iter().flat_map(types_in_rules).collect::<BTreeSet<_>>();
    of_parameter.into_iter().chain(of_rules.into_iter().map(Name::into_owned)).collect()
}

/// The types of events in the patterns of a function's rules.
pub(crate) fn types_in_rules(function: &Function<'_>) -> BTreeSet<Name> {
    let mut wanted = BTreeSet::new();
    for (_, properties) in function.events("EventBridgeRule") {
        let types = list(&properties["Pattern"]["detail-type"]);
        wanted.extend(types.into_iter().filter_map(|name| Some(name.as_str()?.to_owned().into())));
    }
    wanted
}

/// The line of a function that the fanout invokes with states: the function and the category.
fn state_view(_: &Template<'_>, function: &Function<'_>) -> Option<String> {
    let Source::States { .. } = &function.manifest.source else { return None };
    // A rule of the bus invokes this function, so the fanout does not.
    let has_rule = function.events("EventBridgeRule").next().is_some();
    (!has_rule).then(|| invocation_line(function))
}

/// The line of a queue: the queue, and the categories whose commits the fanout sends to it.
fn log_queue(_: &Template<'_>, function: &Function<'_>) -> Option<String> {
    let Source::Queue(_) = &function.manifest.source else { return None };
    Some(queue_line(queue(function)?, function))
}

/// The line of a function that the sequencer invokes: the function, and the categories that it
/// consumes.
fn subscription(_: &Template<'_>, function: &Function<'_>) -> Option<String> {
    let Source::Sequence(_) = &function.manifest.source else { return None };
    Some(invocation_line(function))
}

/// The line that makes the fanout or the sequencer invoke a function: its alias, and the categories
/// whose states or commits it gets.
pub(crate) fn invocation_line(function: &Function<'_>) -> String {
    format!("${{{}}}:live {}", function.id, categories(function))
}

/// The line that makes the fanout send commits to the queue of a function.
pub(crate) fn queue_line(queue: &str, function: &Function<'_>) -> String {
    format!("${{{queue}}} {}", categories(function))
}

fn categories(function: &Function<'_>) -> String {
    function.manifest.categories().into_iter().collect::<Vec<_>>().join(" ")
}

/// The queue that a function receives from.
fn queue<'t>(function: &Function<'t>) -> Option<&'t str> {
    function.events("SQS").find_map(|(_, properties)| logical_id(&properties["Queue"]))
}

/// The names in the list of a loop; `None` if there is no such loop.
pub(crate) fn names(template: &Template<'_>, name: &str) -> Option<Vec<String>> {
    let name_in_list: fn(&Template<'_>, &Function<'_>) -> Option<String> = match name {
        "Urls" => has_url,
        "Commands" => only_category,
        "StateViews" => |template, function| {
            let is_in_loop = is(function, SubscriberKind::StateProjector)
                && has_role_of_loop(template, function);
            is_in_loop.then(|| strip_suffix(function.id, "ProjectorFunction")).flatten()
        },
        "LogViews" => |template, function| {
            let is_in_loop =
                is(function, SubscriberKind::LogProjector) && has_role_of_loop(template, function);
            is_in_loop.then(|| strip_suffix(function.id, "ProjectorFunction")).flatten()
        },
        "Queues" => |_, function| {
            let Source::Queue(_) = function.manifest.source else { return None };
            strip_suffix(queue(function)?, "Queue")
        },
        "Rules" => has_rule,
        _ => return None,
    };
    Some(sort(template.functions.iter().filter_map(|function| name_in_list(template, function))))
}

/// The name of a function that a rule of the bus invokes. The loop creates an alarm and the policy
/// of its retry queue. The rule sends events that it cannot deliver to that queue.
fn has_rule(template: &Template<'_>, function: &Function<'_>) -> Option<String> {
    function.events("EventBridgeRule").next()?;
    let name = strip_suffix(function.id, "ProjectorFunction")
        .or_else(|| strip_suffix(function.id, "Function"))?;
    (!template.is_written(&format!("{name}RetryQueuePolicy"))).then_some(name)
}

/// The name of a function with its own URL. A function behind the HTTP API gets one, unless it
/// shows the commits of all streams, because a URL has no scopes.
fn has_url(_: &Template<'_>, function: &Function<'_>) -> Option<String> {
    let endpoints = function.manifest.endpoints();
    let is_open = !endpoints.is_empty() && endpoints.iter().all(|it| it.scope != Scope::Events);
    is_open.then(|| strip_suffix(function.id, "Function")).flatten()
}

/// The only category to whose streams a command function appends, if a loop creates its role.
fn only_category(template: &Template<'_>, function: &Function<'_>) -> Option<String> {
    let Source::Http(_) = &function.manifest.source else { return None };
    let keys = function.manifest.table_of("COMMITS_TABLE")?.actions.get(&Action::PartiQLInsert)?;
    let category = keys.iter().next()?.strip_suffix("-*")?;
    (keys.len() == 1 && has_role_of_loop(template, function)).then(|| category.to_owned())
}

/// Whether a loop creates the role of a function. Every other role has its own text in the
/// template.
fn has_role_of_loop(template: &Template<'_>, function: &Function<'_>) -> bool {
    !template.is_written(logical_id(&function.properties["Role"]).unwrap_or_default())
}

fn is(function: &Function<'_>, kind: SubscriberKind) -> bool {
    function.manifest.subscriber.as_ref().is_some_and(|subscriber| subscriber.kind == kind)
}

fn strip_suffix(id: &str, suffix: &str) -> Option<String> {
    id.strip_suffix(suffix).map(ToOwned::to_owned)
}

fn sort(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut names: Vec<_> = names.collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// A variable with these lines. Without a line, the text is empty.
pub(super) fn as_variable(name: &str, lines: &[String]) -> Vec<String> {
    let lines = lines.iter().map(|line| format!("  {line}"));
    [format!("{name}: !Sub |")].into_iter().chain(lines).collect()
}

/// The list of a loop.
pub(super) fn as_list(name: &str, names: &[String]) -> Result<Vec<String>, String> {
    let Some((first, rest)) = names.split_first() else {
        return Err(format!(
            "no function of the template belongs in the loop `{name}`: delete the loop"
        ));
    };
    Ok([format!("- - {first}")]
        .into_iter()
        .chain(rest.iter().map(|name| format!("  - {name}")))
        .collect())
}
