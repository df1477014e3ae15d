//! The variables and lists that name functions, queues and events.

use std::collections::BTreeSet;

use ledgerline::manifest::{Name, Source};

use super::value::substitution;
use crate::{
    functions::{Function, Template},
    lookup::{list, logical_id},
    yaml::Node,
};

/// The variables that name resources of several functions.
pub(super) const VARIABLES: [&str; 6] = [
    "STATE_VIEWS",
    "LOG_QUEUES",
    "SUBSCRIPTIONS",
    "SUBSCRIBERS",
    "OTHER_SUBSCRIBERS",
    "BUS_EVENTS",
];

/// The value of a variable that names resources of several functions.
pub(super) fn value(template: &Template<'_>, name: &str) -> Node {
    let line: fn(&Template<'_>, &Function<'_>) -> Option<String> = match name {
        "STATE_VIEWS" => state_view,
        "LOG_QUEUES" => log_queue,
        "SUBSCRIPTIONS" => subscription,
        "SUBSCRIBERS" => |template, function| template.subscriber_line(function),
        "OTHER_SUBSCRIBERS" => |template, function| template.other_subscriber_line(function),
        _ => return text(&bus_events(template)),
    };
    let lines = template.functions.iter().filter_map(|function| line(template, function));
    text(&lines.collect())
}

fn text(lines: &BTreeSet<String>) -> Node {
    match lines.is_empty() {
        true => "".into(),
        false => substitution(lines.iter().map(|line| format!("{line}\n")).collect()),
    }
}

/// The types of events that the fanout puts on the bus: those of the parameter, and those of the
/// rules of the template.
fn bus_events(template: &Template<'_>) -> BTreeSet<String> {
    let types = template.functions.iter().flat_map(types_in_rules).map(Name::into_owned);
    types.chain(["${BusEvents}".to_owned()]).collect()
}

/// The types of events in the patterns of a function's rules.
fn types_in_rules(function: &Function<'_>) -> BTreeSet<Name> {
    let mut wanted = BTreeSet::new();
    for (_, properties) in function.events("EventBridgeRule") {
        let types = list(&properties["Pattern"]["detail-type"]);
        wanted.extend(types.into_iter().filter_map(|name| Some(name.as_str()?.to_owned().into())));
    }
    wanted
}

/// The line of a function that the fanout invokes with states: the function and the category.
fn state_view(_: &Template<'_>, function: &Function<'_>) -> Option<String> {
    let Source::States { bus: false, .. } = &function.manifest.source else { return None };
    Some(invocation_line(function))
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
fn invocation_line(function: &Function<'_>) -> String {
    format!("${{{}}}:live {}", function.id, categories(function))
}

/// The line that makes the fanout send commits to the queue of a function.
fn queue_line(queue: &str, function: &Function<'_>) -> String {
    format!("${{{queue}}} {}", categories(function))
}

fn categories(function: &Function<'_>) -> String {
    function.manifest.categories().into_iter().collect::<Vec<_>>().join(" ")
}

/// The queue that a function receives from.
fn queue<'t>(function: &Function<'t>) -> Option<&'t str> {
    function.events("SQS").find_map(|(_, properties)| logical_id(&properties["Queue"]))
}
