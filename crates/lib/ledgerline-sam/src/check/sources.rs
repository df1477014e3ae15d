//! Checks the sources of events: routes, rules, queues, the stream and schedules.

use std::collections::{BTreeMap, BTreeSet};

use ledgerline::{
    STATE_REPUBLISHED,
    manifest::{Endpoint, Name, Source},
};
use serde_json::Value;

use crate::functions::{Function, Template, join_names};
use crate::generate::{invocation_line, queue_line, types_in_rules};
use crate::{
    grants::COMMITS,
    lookup::{event_source, list, logical_id, scope_prefix},
};

/// Finds differences between the sources of events and those that the functions need.
pub(super) fn problems(template: &Template<'_>) -> Vec<String> {
    let queues = LogQueues::new(template);
    let views = Invoked::new(template, "STATE_VIEWS");
    let subscriptions = Invoked::new(template, "SUBSCRIPTIONS");
    let mut problems = [
        queues.problems(template),
        views.problems(template, "a state view", |source| matches!(source, Source::States { .. })),
        subscriptions
            .problems(template, "a subscription", |source| matches!(source, Source::Sequence(_))),
    ]
    .concat();
    problems.extend(subscribers(template));
    let prefix = event_source(template.json).unwrap_or_default();
    for function in &template.functions {
        let (kinds, found): (&[&str], _) = match &function.manifest.source {
            Source::Http(endpoints) => (&["HttpApi"], routes(template, function, endpoints)),
            Source::States { category, events, .. } => {
                let source = format!("{prefix}.{category}");
                // The fanout or a rule delivers the states.
                let mut found = match views.states_of(template, function, category) {
                    Some(found) => found,
                    None => rule(template, function, &source, events),
                };
                found.extend(queues.retry_problems(template, function));
                if events.contains(STATE_REPUBLISHED) {
                    let message = format!(
                        "its aggregate has an event with the reserved name {STATE_REPUBLISHED}: rename the event"
                    );
                    found.push(template.problem(function.id, &[], &message));
                }
                (&["EventBridgeRule", "SQS"], found)
            }
            Source::Queue(categories) => {
                (&["SQS"], queues.check_function(template, function, categories))
            }
            Source::Stream => (&["DynamoDB"], stream(template, function)),
            Source::Schedule => (&["Schedule"], scheduled(template, function, "rate(1 day)")),
            Source::Sequence(categories) => {
                (&["Schedule"], subscriptions.woken(template, function, categories))
            }
        };
        problems.extend(found);
        let others = function.properties["Events"].as_object().into_iter().flatten();
        for (name, event) in
            others.filter(|(_, event)| kinds.iter().all(|kind| event["Type"] != *kind))
        {
            let message = format!(
                "it handles no events of type {}: write only {}",
                event["Type"],
                kinds.join(" and ")
            );
            problems.push(template.problem(function.id, &["Events", name], &message));
        }
    }
    problems
}

/// Finds problems with routes and their scopes.
fn routes<'t>(
    template: &Template<'t>,
    function: &Function<'t>,
    endpoints: &[Endpoint],
) -> Vec<String> {
    let mut problems = Vec::new();
    let mut wired = BTreeSet::new();
    let prefix = scope_prefix(template.json).unwrap_or_default();
    for (name, properties) in function.events("HttpApi") {
        let text = |key: &str| properties[key].as_str().unwrap_or_default().to_owned();
        let route = format!("{} {}", text("Method").to_uppercase(), text("Path"));
        let place = ["Events", name, "Properties"];
        match endpoints.iter().find(|endpoint| endpoint.route == route) {
            None => {
                let known = join_names(endpoints.iter().map(|endpoint| &endpoint.route));
                let message = format!("its code has no route {route}; choose one of: {known}");
                problems.push(template.problem(function.id, &place, &message));
            }
            Some(Endpoint { scope, .. }) => {
                let wanted = format!("{prefix}/{}", scope.as_str());
                if list(&properties["Auth"]["AuthorizationScopes"]) != [wanted.as_str()] {
                    let message = format!("{route} must require the scope {wanted}, and no other");
                    problems.push(template.problem(function.id, &place, &message));
                }
            }
        }
        if !wired.insert(route.clone()) {
            problems.push(template.problem(
                function.id,
                &place,
                &format!("two events have the route {route}: delete one"),
            ));
        }
    }
    for endpoint in endpoints.iter().filter(|endpoint| !wired.contains(&*endpoint.route)) {
        let (method, path) = endpoint.route.split_once(' ').unwrap_or_default();
        let message = format!(
            "no event has its route {}: add an HttpApi event with Method: {method}, Path: {path} and the scope …/{}",
            endpoint.route,
            endpoint.scope.as_str()
        );
        problems.push(template.problem(function.id, &["Events"], &message));
    }
    problems
}

/// Finds problems with the rule of a function that receives states from the bus.
fn rule<'t>(
    template: &Template<'t>,
    function: &Function<'t>,
    source: &str,
    events: &BTreeSet<Name>,
) -> Vec<String> {
    let mut problems = Vec::new();
    let rules: Vec<_> = function.events("EventBridgeRule").collect();
    if rules.is_empty() {
        let message = format!(
            "the fanout sends it no states: add the line {} to STATE_VIEWS of the fanout",
            invocation_line(function)
        );
        problems.push(template.problem(function.id, &["Events"], &message));
    } else if rules.len() != 1 {
        let message =
            format!("it needs one EventBridgeRule, of source {source}, and has {}", rules.len());
        problems.push(template.problem(function.id, &["Events"], &message));
    }
    for (name, properties) in rules {
        let place = |keys: &[&'static str]| [&["Events", name, "Properties"], keys].concat();
        let pattern = &properties["Pattern"];
        if list(&pattern["source"]) != [source] {
            let message = format!("its events have the source {source}, not {}", pattern["source"]);
            problems.push(template.problem(function.id, &place(&["Pattern", "source"]), &message));
        }
        let named: BTreeSet<Name> = list(&pattern["detail-type"])
            .into_iter()
            .filter_map(|name| Some(name.as_str()?.to_owned().into()))
            .collect();
        let missing = join_names(events.difference(&named));
        if !missing.is_empty() {
            let message =
                format!("the rule does not match {missing}: add the types to detail-type");
            problems.push(template.problem(
                function.id,
                &place(&["Pattern", "detail-type"]),
                &message,
            ));
        }
        // A rule may match `StateRepublished`, which is no event of an aggregate.
        let unknown =
            join_names(named.difference(events).filter(|event| **event != STATE_REPUBLISHED));
        if !unknown.is_empty() {
            let message = format!(
                "its aggregate has no events {unknown}; choose from: {}",
                join_names(events)
            );
            problems.push(template.problem(
                function.id,
                &place(&["Pattern", "detail-type"]),
                &message,
            ));
        }
        let others = pattern.as_object().into_iter().flatten().map(|(key, _)| key);
        for key in others.filter(|key| !["source", "detail-type"].contains(&key.as_str())) {
            let message = format!(
                "the rule's pattern has {key}, with which the rule misses events: delete it"
            );
            problems.push(template.problem(function.id, &place(&["Pattern"]), &message));
        }
        problems.extend(unsent(template, function));
        if logical_id(&properties["EventBusName"])
            .is_none_or(|bus| template.kind(bus) != "AWS::Events::EventBus")
        {
            let message =
                "the rule is on no bus of the template: write EventBusName: !Ref EventBus";
            problems.push(template.problem(function.id, &place(&["EventBusName"]), message));
        }
    }
    problems
}

/// Finds types of events that a rule of this function matches and the fanout does not put on the
/// bus.
fn unsent<'t>(template: &Template<'t>, function: &Function<'t>) -> Vec<String> {
    const BUS_EVENTS: &str = "BUS_EVENTS";
    let mut functions = template.functions.iter();
    let is_fanout =
        |function: &&Function<'t>| function.manifest.optional_variables.contains(BUS_EVENTS);
    let Some(fanout) = functions.find(is_fanout) else { return Vec::new() };
    // Without the variable, the fanout puts all events on the bus.
    let Some(value) = template.variable(fanout, BUS_EVENTS) else { return Vec::new() };
    let parameter =
        &template.json["Parameters"][value["Ref"].as_str().unwrap_or_default()]["Default"];
    let text =
        value["Fn::Sub"].as_str().or(value.as_str()).or(parameter.as_str()).unwrap_or_default();
    let sent: BTreeSet<_> =
        text.split_whitespace().map(|name| Name::Owned(name.to_owned())).collect();
    let missing = types_in_rules(function);
    let missing: Vec<_> = missing.difference(&sent).filter(|_| !sent.contains("*")).collect();
    if missing.is_empty() {
        return Vec::new();
    }
    let message = format!(
        "the fanout does not send {} to the bus, but a rule of {} matches them: add the types to BUS_EVENTS",
        join_names(missing),
        function.id
    );
    vec![template.problem(fanout.id, &["Environment", "Variables", BUS_EVENTS], &message)]
}

/// Finds problems with the stream of the log.
fn stream<'t>(template: &Template<'t>, function: &Function<'t>) -> Vec<String> {
    let streams: Vec<_> = function.events("DynamoDB").collect();
    let of_commits = |properties: &Value| {
        properties["Stream"]["Fn::GetAtt"].as_str() == Some("CommitsTable.StreamArn")
            || list(&properties["Stream"]["Fn::GetAtt"]) == [COMMITS, "StreamArn"]
    };
    if let [(_, properties)] = streams.as_slice()
        && of_commits(properties)
    {
        return Vec::new();
    }
    let message = "it needs one DynamoDB event: write Stream: !GetAtt CommitsTable.StreamArn";
    vec![template.problem(function.id, &["Events"], message)]
}

/// Finds problems with the schedule of a function.
fn scheduled<'t>(template: &Template<'t>, function: &Function<'t>, often: &str) -> Vec<String> {
    if function.events("Schedule").count() == 1 {
        return Vec::new();
    }
    let message = format!("it needs one Schedule event: write Schedule: {often}");
    vec![template.problem(function.id, &["Events"], &message)]
}

/// Finds problems with the lines of the reconciler. It never compares a subscriber without a line
/// with the log, so it never finds a commit that this subscriber lost.
fn subscribers(template: &Template<'_>) -> Vec<String> {
    const SUBSCRIBERS: &str = "SUBSCRIBERS";
    let place = ["Environment", "Variables", SUBSCRIBERS];
    let mut functions = template.functions.iter();
    let Some(reconciler) =
        functions.find(|function| function.manifest.variables.contains(SUBSCRIBERS))
    else {
        return Vec::new();
    };
    let lines =
        template.variable(reconciler, SUBSCRIBERS).and_then(|lines| lines["Fn::Sub"].as_str());
    let written = lines.unwrap_or_default().lines().map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        words.join(" ")
    });
    let written: BTreeSet<_> = written.filter(|line| !line.is_empty()).collect();
    let wanted: BTreeSet<_> = template
        .functions
        .iter()
        .filter_map(|function| template.subscriber_line(function))
        .collect();
    let missing = wanted.difference(&written).map(|line| {
        format!(
            "no line of SUBSCRIBERS compares {}: write {line}",
            line.split(' ').next().unwrap_or_default()
        )
    });
    let surplus = written
        .difference(&wanted)
        .map(|line| format!("no subscriber has this line, so delete it: {line}"));
    missing
        .chain(surplus)
        .map(|message| template.problem(reconciler.id, &place, &message))
        .collect()
}

/// The lines of `STATE_VIEWS` of the fanout, or of `SUBSCRIPTIONS` of the sequencer. Each names a
/// function to invoke, and the categories that it consumes.
struct Invoked<'a> {
    /// The function that has the lines.
    by: &'a str,
    variable: &'static str,
    functions: BTreeMap<&'a str, (&'a str, BTreeSet<Name>)>,
}

impl<'a> Invoked<'a> {
    fn new(template: &Template<'a>, variable: &'static str) -> Self {
        let (by, lines) = lines(template, variable);
        // A line is `${Function}:alias category`: the alias follows the function's name.
        let view = |line: &'a str| {
            let (function, rest) = line.trim().strip_prefix("${")?.split_once('}')?;
            let (alias, categories) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
            Some((
                function,
                (
                    alias,
                    categories
                        .split_whitespace()
                        .map(|category| category.to_owned().into())
                        .collect(),
                ),
            ))
        };
        Self { by, variable, functions: lines.lines().filter_map(view).collect() }
    }

    /// The place of the lines, below the properties of the function that has them.
    fn lines(&self) -> [&'static str; 3] {
        ["Environment", "Variables", self.variable]
    }

    /// Finds functions that have a line and are not of this kind.
    fn problems(
        &self,
        template: &Template<'_>,
        kind: &str,
        is_of_kind: fn(&Source) -> bool,
    ) -> Vec<String> {
        let wants = |id: &str| {
            let mut functions = template.functions.iter();
            functions.any(|function| function.id == id && is_of_kind(&function.manifest.source))
        };
        let left = self.functions.keys().filter(|function| !wants(function));
        left.map(|function| {
            let message =
                format!("{} has {function}, which is not a function of {kind}", self.variable);
            template.problem(self.by, &self.lines(), &message)
        })
        .collect()
    }

    /// Finds problems with the line and the schedule of a subscription.
    fn woken(
        &self,
        template: &Template<'a>,
        function: &Function<'a>,
        categories: &BTreeSet<Name>,
    ) -> Vec<String> {
        let mut problems = Vec::new();
        let line = invocation_line(function);
        let known = self.functions.get(function.id);
        if known.is_none_or(|(alias, wanted)| *alias != ":live" || wanted != categories) {
            let message = format!("the sequencer does not invoke {}: write {line}", function.id);
            let (by, place) = match self.by {
                "" => (function.id, vec!["Events"]),
                by => (by, self.lines().to_vec()),
            };
            problems.push(template.problem(by, &place, &message));
        }
        problems.extend(scheduled(template, function, "rate(1 minute)"));
        problems
    }

    /// Finds problems with the line of a state view; `None` if it has no line.
    fn states_of(
        &self,
        template: &Template<'a>,
        function: &Function<'a>,
        category: &str,
    ) -> Option<Vec<String>> {
        let (alias, categories) = self.functions.get(function.id)?;
        let mut problems = Vec::new();
        let line = invocation_line(function);
        if categories.iter().ne([category]) || *alias != ":live" {
            let message = format!("{} needs the states of {category}: write {line}", function.id);
            problems.push(template.problem(self.by, &self.lines(), &message));
        }
        for (name, _) in function.events("EventBridgeRule") {
            let message =
                "the fanout sends it the same states: delete the rule, or its line in STATE_VIEWS";
            problems.push(template.problem(function.id, &["Events", name], message));
        }
        Some(problems)
    }
}

/// The logical id of the function that has this variable, the fanout or the sequencer, and the
/// variable's lines.
fn lines<'a>(template: &Template<'a>, variable: &str) -> (&'a str, &'a str) {
    // The fanout and the sequencer read the same stream, so the variable tells them apart.
    let mut functions = template.functions.iter();
    let fanout = functions.find(|function| {
        matches!(function.manifest.source, Source::Stream)
            && function.manifest.variables.contains(variable)
    });
    let lines = fanout.and_then(|fanout| template.variable(fanout, variable));
    let lines = lines.and_then(|lines| lines["Fn::Sub"].as_str()).unwrap_or_default();
    (fanout.map_or("", |fanout| fanout.id), lines)
}

/// The lines of `LOG_QUEUES` of the fanout. Each names a queue and the categories whose commits it
/// gets.
struct LogQueues<'a> {
    fanout: &'a str,
    queues: BTreeMap<&'a str, BTreeSet<Name>>,
}

/// The place of `LOG_QUEUES`, below the properties of the fanout.
const LINES: [&str; 3] = ["Environment", "Variables", "LOG_QUEUES"];

impl<'a> LogQueues<'a> {
    fn new(template: &Template<'a>) -> Self {
        let (fanout, lines) = lines(template, "LOG_QUEUES");
        let queue = |line: &'a str| {
            let (queue, categories) = line.trim().strip_prefix("${")?.split_once('}')?;
            Some((
                queue,
                categories.split_whitespace().map(|category| category.to_owned().into()).collect(),
            ))
        };
        Self { fanout, queues: lines.lines().filter_map(queue).collect() }
    }

    /// Finds queues that get commits and that no function reads.
    fn problems(&self, template: &Template<'_>) -> Vec<String> {
        let taken: BTreeSet<_> = template
            .functions
            .iter()
            .flat_map(|function| function.events("SQS"))
            .filter_map(|(_, properties)| logical_id(&properties["Queue"]))
            .collect();
        let left = self.queues.keys().filter(|queue| !taken.contains(**queue));
        left.map(|queue| {
            let message = format!("LOG_QUEUES has {queue}, which no function reads");
            template.problem(self.fanout, &LINES, &message)
        })
        .collect()
    }

    /// Finds problems with the queue from which a function retries failed states. The queue must
    /// get no commits, and no other function may read it.
    fn retry_problems(&self, template: &Template<'a>, function: &Function<'a>) -> Vec<String> {
        let mut problems = Vec::new();
        for (name, properties) in function.events("SQS") {
            let place = ["Events", name, "Properties", "Queue"];
            match logical_id(&properties["Queue"])
                .filter(|queue| template.kind(queue) == "AWS::SQS::Queue")
            {
                None => {
                    let message = "it reads no queue of the template: write Queue: !GetAtt <name>RetryQueue.Arn";
                    problems.push(template.problem(function.id, &place, message));
                }
                Some(queue) => {
                    if self.queues.contains_key(queue) {
                        let message = format!(
                            "LOG_QUEUES has {queue}, the retry queue of {}: delete the line",
                            function.id
                        );
                        problems.push(template.problem(self.fanout, &LINES, &message));
                    }
                    problems.extend(Self::others(template, function, queue, &place));
                }
            }
        }
        problems
    }

    /// Finds other functions that read the same queue.
    fn others(
        template: &Template<'a>,
        function: &Function<'a>,
        queue: &str,
        place: &[&str],
    ) -> Vec<String> {
        let others = template.functions.iter().filter(|other| {
            other.id != function.id
                && other
                    .events("SQS")
                    .any(|(_, properties)| logical_id(&properties["Queue"]) == Some(queue))
        });
        others
            .map(|other| {
                let message = format!(
                    "{} reads {queue} too, and each would miss messages: use two queues",
                    other.id
                );
                template.problem(function.id, place, &message)
            })
            .collect()
    }

    /// Finds problems with the queue of a function that consumes commits.
    fn check_function(
        &self,
        template: &Template<'a>,
        function: &Function<'a>,
        categories: &BTreeSet<Name>,
    ) -> Vec<String> {
        let sources: Vec<_> = function.events("SQS").collect();
        let [(name, properties)] = sources.as_slice() else {
            let message = format!("it needs one SQS event, and has {}", sources.len());
            return vec![template.problem(function.id, &["Events"], &message)];
        };
        let place = ["Events", *name, "Properties", "Queue"];
        let Some(queue) = logical_id(&properties["Queue"])
            .filter(|queue| template.kind(queue) == "AWS::SQS::Queue")
        else {
            let message = "it reads no queue of the template: write Queue: !GetAtt <name>Queue.Arn";
            return vec![template.problem(function.id, &place, message)];
        };
        let mut problems = Self::others(template, function, queue, &place);
        let line = queue_line(queue, function);
        match self.queues.get(queue) {
            None => {
                let message = format!(
                    "the fanout sends nothing to {queue}, which {} reads: add the line {line}",
                    function.id
                );
                problems.push(template.problem(self.fanout, &LINES, &message));
            }
            Some(sent) if sent != categories => {
                let message = format!(
                    "{queue} gets the commits of {}, but {} applies those of {}: write {line}",
                    join_names(sent),
                    function.id,
                    join_names(categories)
                );
                problems.push(template.problem(self.fanout, &LINES, &message));
            }
            Some(_) => {}
        }
        problems
    }
}
