//! Checks the safeguards that every template must have (rules 3 and 11). Unknown callers get no
//! access, a failed event is retried and never lost, and stored data survives the deletion of the
//! stack.

mod access;

use std::collections::BTreeSet;

use serde_json::Value;

use crate::{
    grants::{COMMITS, SEQUENCE},
    lookup::{list, logical_id, resources},
    template::Source,
};

/// Seconds for which a dead-letter queue retains its messages: 14 days, the most that SQS allows.
const KEPT: i64 = 1_209_600;
/// Lambda's default timeout of a function, in seconds.
const DEFAULT_TIMEOUT: i64 = 3;
/// SQS's default visibility timeout of a queue, in seconds.
const DEFAULT_VISIBILITY_TIMEOUT: i64 = 30;

/// Finds missing and weakened safeguards, each with its place.
pub(super) fn problems(source: &Source) -> Vec<String> {
    let json = source.json();
    let template = Template { source, json: &json, problems: Vec::new() };
    template.api().clients().invokers().tables().functions().problems
}

struct Template<'a> {
    source: &'a Source,
    json: &'a Value,
    problems: Vec<String>,
}

impl Template<'_> {
    /// Adds a problem with a resource. The keys lead to its place below the resource's properties.
    /// If a key is missing, the place is the closest node above it.
    fn wrong(&mut self, id: &str, keys: &[&str], message: &str) {
        let place = self.source.place(&[&["Resources", id, "Properties"], keys].concat());
        let problem = format!("{place}: {id}: {message}");
        // Several functions or events may have the same queue, whose problem is added once.
        if !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
    }

    /// Adds a problem if a property does not have the expected value.
    fn must(&mut self, id: &str, keys: &[&str], found: &Value, expected: &Value) {
        if found != expected {
            // For an event, the message has only the path below the event's properties.
            let path = if keys.first() == Some(&"Events") {
                keys.get(3..).unwrap_or_default()
            } else {
                keys
            };
            self.wrong(id, keys, &format!("write {}: {expected}", path.join(".")));
        }
    }

    /// Checks the tables that cannot be rebuilt from others. They must survive the deletion of the
    /// stack, and must be restorable.
    fn tables(mut self) -> Self {
        for (id, table) in resources(self.json, &["AWS::DynamoDB::Table"]) {
            if ![COMMITS, SEQUENCE, "RequestsTable"].contains(&id)
                && !id.ends_with("PositionsTable")
            {
                continue;
            }
            let kept = ["Retain", "RetainExceptOnCreate"];
            for policy in ["DeletionPolicy", "UpdateReplacePolicy"] {
                if !table[policy].as_str().is_some_and(|policy| kept.contains(&policy)) {
                    let message =
                        format!("its rows would be deleted with the stack: write {policy}: Retain");
                    self.wrong(id, &[], &message);
                }
            }
            let properties = &table["Properties"];
            let recovery = "PointInTimeRecoverySpecification";
            self.must(
                id,
                &[recovery, "PointInTimeRecoveryEnabled"],
                &properties[recovery]["PointInTimeRecoveryEnabled"],
                &true.into(),
            );
            if properties["DeletionProtectionEnabled"].is_null()
                || properties["DeletionProtectionEnabled"] == false
            {
                self.wrong(id, &[], "write DeletionProtectionEnabled: !If [IsProd, true, false]");
            }
            if id == COMMITS {
                // With another view type, the records would have no commits, and the fanout could
                // pass none on.
                let keys = ["StreamSpecification", "StreamViewType"];
                self.must(
                    id,
                    &keys,
                    &properties["StreamSpecification"]["StreamViewType"],
                    &"NEW_IMAGE".into(),
                );
            }
            if id == "RequestsTable" {
                let keys = ["TimeToLiveSpecification", "AttributeName"];
                self.must(
                    id,
                    &keys,
                    &properties["TimeToLiveSpecification"]["AttributeName"],
                    &"expires".into(),
                );
                self.must(
                    id,
                    &["TimeToLiveSpecification", "Enabled"],
                    &properties["TimeToLiveSpecification"]["Enabled"],
                    &true.into(),
                );
            }
        }
        self
    }

    /// Checks the sources of functions (rule 11). A failed event must be retried, in order. A
    /// poison pill must go to a dead-letter queue.
    fn functions(mut self) -> Self {
        let functions = || resources(self.json, &["AWS::Serverless::Function"]);
        let views: String = functions()
            .filter_map(|(_, function)| {
                function.pointer("/Properties/Environment/Variables/STATE_VIEWS/Fn::Sub")?.as_str()
            })
            .collect();
        for (id, function) in functions() {
            // The function receives states if the fanout or a rule of the bus invokes it,
            // asynchronously.
            let takes_states = views.contains(&format!("${{{id}}}"))
                || events(function, "EventBridgeRule").next().is_some();
            let taken: Vec<_> = events(function, "SQS")
                .filter_map(|(_, properties)| logical_id(&properties["Queue"]))
                .collect();
            for (name, properties) in events(function, "SQS") {
                if takes_states {
                    // One event that crashes the function must not use up the attempts of other
                    // events.
                    let keys = ["Events", name, "Properties", "BatchSize"];
                    self.must(id, &keys, &properties["BatchSize"], &1.into());
                } else {
                    self.partial(id, name, properties);
                }
                self.queue(logical_id(&properties["Queue"]), function, !takes_states);
                if properties["ScalingConfig"]["MaximumConcurrency"].is_null() {
                    let message = "it may use all of the account's concurrency: write ScalingConfig: { MaximumConcurrency: !Ref QueueConcurrency }";
                    self.wrong(id, &["Events", name, "Properties"], message);
                }
            }
            for (name, properties) in events(function, "DynamoDB") {
                self.partial(id, name, properties);
                self.stream(id, name, properties);
                if !function["Properties"]["Environment"]["Variables"]["SEQUENCE_TABLE"].is_null() {
                    self.whole_stream(id, name, properties);
                    continue;
                }
                self.bounded_stream(id, name, properties);
                // The records that the fanout quarantines must go to the same queue as those that
                // Lambda no longer retries.
                let letters =
                    &function["Properties"]["Environment"]["Variables"]["DEAD_LETTER_QUEUE"];
                let on_failure = &properties["DestinationConfig"]["OnFailure"]["Destination"];
                if logical_id(letters) != logical_id(on_failure) {
                    let keys = ["Environment", "Variables", "DEAD_LETTER_QUEUE"];
                    self.wrong(
                        id,
                        &keys,
                        "DEAD_LETTER_QUEUE must be the queue in DestinationConfig of the stream",
                    );
                }
            }
            for (name, properties) in events(function, "EventBridgeRule") {
                let keys = ["Events", name, "Properties", "DeadLetterConfig"];
                match logical_id(&properties["DeadLetterConfig"]["Arn"]) {
                    Some(queue) if taken.contains(&queue) => self.policy(queue, properties),
                    Some(_) | None => {
                        let message = "events that EventBridge cannot deliver are lost: write DeadLetterConfig: { Arn: !GetAtt <name>RetryQueue.Arn }, and an SQS event with that queue";
                        self.wrong(id, &keys, message);
                    }
                }
            }
            if takes_states {
                let destination =
                    &property(self.json, function, "EventInvokeConfig")["DestinationConfig"];
                if !logical_id(&destination["OnFailure"]["Destination"])
                    .is_some_and(|queue| taken.contains(&queue))
                {
                    let message = "events at which it always fails are lost: write EventInvokeConfig: { DestinationConfig: { OnFailure: { Type: SQS, Destination: !GetAtt <name>RetryQueue.Arn } } }, and an SQS event with that queue";
                    self.wrong(id, &["EventInvokeConfig"], message);
                }
            }
        }
        self
    }

    /// Checks that a function reports the records that failed. Otherwise Lambda also redelivers the
    /// records that succeeded.
    fn partial(&mut self, id: &str, name: &str, properties: &Value) {
        let keys = ["Events", name, "Properties", "FunctionResponseTypes"];
        let expected = Value::from(vec!["ReportBatchItemFailures"]);
        self.must(id, &keys, &properties["FunctionResponseTypes"], &expected);
    }

    /// Checks that Lambda retries each record of the sequencer until it succeeds. Otherwise `$all`
    /// would lack the record's commit.
    fn whole_stream(&mut self, id: &str, name: &str, properties: &Value) {
        for key in ["MaximumRetryAttempts", "MaximumRecordAgeInSeconds"] {
            self.must(id, &["Events", name, "Properties", key], &properties[key], &(-1).into());
        }
    }

    /// Checks that Lambda sends a poison pill to a dead-letter queue after a limited time. This is
    /// for a function that reads whole records.
    fn bounded_stream(&mut self, id: &str, name: &str, properties: &Value) {
        let keys = |key: &'static str| ["Events", name, "Properties", key];
        if !self.is_dead_letter_queue(
            logical_id(&properties["DestinationConfig"]["OnFailure"]["Destination"]),
            false,
        ) {
            let message = "records that Lambda no longer retries are lost: write DestinationConfig: { OnFailure: { Type: SQS, … } }";
            self.wrong(id, &keys("DestinationConfig"), message);
        }
        // The defaults have no limit: one record would stop its shard until it leaves the stream.
        for key in ["MaximumRetryAttempts", "MaximumRecordAgeInSeconds"] {
            if properties[key].as_i64().is_none_or(|most| most < 0) {
                let message = format!("without a limit in {key}, one poison pill stops its shard");
                self.wrong(id, &keys(key), &message);
            }
        }
        self.must(
            id,
            &keys("BisectBatchOnFunctionError"),
            &properties["BisectBatchOnFunctionError"],
            &true.into(),
        );
    }

    fn stream(&mut self, id: &str, name: &str, properties: &Value) {
        let keys = |key: &'static str| ["Events", name, "Properties", key];
        self.must(
            id,
            &keys("StartingPosition"),
            &properties["StartingPosition"],
            &"TRIM_HORIZON".into(),
        );
        // There must be exactly one filter, because with several, a record needs to match only one.
        let filters = list(&properties["FilterCriteria"]["Filters"]);
        let pattern = filters.first().and_then(|filter| filter["Pattern"].as_str());
        let pattern = pattern.and_then(|pattern| serde_json::from_str::<Value>(pattern).ok());
        if filters.len() != 1 || pattern != Some(serde_json::json!({ "eventName": ["INSERT"] })) {
            let message = "the stream must pass on only new commits: write one filter, with the pattern {\"eventName\": [\"INSERT\"]}";
            self.wrong(id, &keys("FilterCriteria"), message);
        }
    }

    /// Checks a queue that a function reads: a FIFO queue of commits, or a queue of events that are
    /// retried.
    fn queue(&mut self, queue: Option<&str>, function: &Value, commits: bool) {
        let Some(id) = queue.filter(|id| self.json["Resources"][id]["Type"] == "AWS::SQS::Queue")
        else {
            return;
        };
        let properties = &self.json["Resources"][id]["Properties"];
        if commits {
            for (key, expected) in [
                ("FifoQueue", Value::from(true)),
                // Without high throughput, all streams share 300 calls a second and one set of
                // deduplication ids.
                ("DeduplicationScope", "messageGroup".into()),
                ("FifoThroughputLimit", "perMessageGroupId".into()),
            ] {
                self.must(id, &[key], &properties[key], &expected);
            }
        }
        let redrive = &properties["RedrivePolicy"];
        if !self.is_dead_letter_queue(logical_id(&redrive["deadLetterTargetArn"]), commits) {
            let (what, stops, kind, too) = match commits {
                true => ("a commit", "stops its stream for ever", "a", " too"),
                false => ("an event", "is retried for two weeks and lost", "no", ""),
            };
            let message = format!(
                "{what} that always fails {stops}: write RedrivePolicy: {{ deadLetterTargetArn: !GetAtt <name>DeadLetterQueue.Arn, maxReceiveCount: 90 }}, and that queue is {kind} FIFO queue{too}"
            );
            self.wrong(id, &["RedrivePolicy"], &message);
        } else if redrive["maxReceiveCount"]
            .as_i64()
            .is_none_or(|most| !(2..=1_000).contains(&most))
        {
            self.wrong(id, &["RedrivePolicy"], "write a maxReceiveCount from 2 to 1000");
        }
        let visible = &properties["VisibilityTimeout"];
        let visible = resolved(self.json, visible);
        let timeout = resolved(self.json, property(self.json, function, "Timeout"))
            .as_i64()
            .unwrap_or(DEFAULT_TIMEOUT);
        if visible.as_i64().unwrap_or(DEFAULT_VISIBILITY_TIMEOUT) < timeout {
            let message =
                format!("SQS redelivers a message before the function's timeout of {timeout} s");
            self.wrong(id, &["VisibilityTimeout"], &message);
        }
    }

    /// Whether a queue of this kind with this logical id exists. Adds a problem if the queue does
    /// not retain its messages for the longest time.
    fn is_dead_letter_queue(&mut self, queue: Option<&str>, fifo: bool) -> bool {
        let Some(id) = queue else { return false };
        let queue = &self.json["Resources"][id];
        let properties = &queue["Properties"];
        if queue["Type"] != "AWS::SQS::Queue" || (properties["FifoQueue"] == true) != fifo {
            return false;
        }
        if properties["MessageRetentionPeriod"] != KEPT {
            let message = format!(
                "an operator needs its messages for 14 days: write MessageRetentionPeriod: {KEPT}"
            );
            self.wrong(id, &["MessageRetentionPeriod"], &message);
        }
        true
    }

    /// Checks that EventBridge may send events that it cannot deliver to this queue, and that the
    /// policy names the rule.
    fn policy(&mut self, queue: &str, rule: &Value) {
        let name = rule["RuleName"]["Fn::Sub"].as_str().unwrap_or_default();
        let statements = resources(self.json, &["AWS::SQS::QueuePolicy"])
            .filter(|(_, policy)| {
                list(&policy["Properties"]["Queues"])
                    .iter()
                    .any(|known| logical_id(known) == Some(queue))
            })
            .flat_map(|(_, policy)| list(&policy["Properties"]["PolicyDocument"]["Statement"]));
        let allows = |statement: &Value| {
            let of = &statement["Condition"]["ArnEquals"]["aws:SourceArn"]["Fn::Sub"];
            statement["Effect"] == "Allow"
                && statement["Principal"]["Service"] == "events.amazonaws.com"
                && list(&statement["Action"]).iter().any(|action| *action == "sqs:SendMessage")
                && logical_id(&statement["Resource"]) == Some(queue)
                && of
                    .as_str()
                    .is_some_and(|of| !name.is_empty() && of.ends_with(&format!("/{name}")))
        };
        if !statements.into_iter().any(allows) {
            let message = format!(
                "no AWS::SQS::QueuePolicy lets events.amazonaws.com send the events that the rule {name} cannot deliver"
            );
            self.wrong(queue, &[], &message);
        }
        let mut principals = BTreeSet::new();
        for (id, policy) in resources(self.json, &["AWS::SQS::QueuePolicy"]) {
            for statement in list(&policy["Properties"]["PolicyDocument"]["Statement"]) {
                if statement["Effect"] == "Allow" && statement["Condition"].is_null() {
                    principals.insert(id.to_owned());
                }
            }
        }
        for id in principals {
            self.wrong(
                &id,
                &["PolicyDocument"],
                "a statement allows every rule: name the rule in aws:SourceArn",
            );
        }
    }
}

/// A property of a function: its own, or that of all functions.
fn property<'v>(template: &'v Value, function: &'v Value, name: &str) -> &'v Value {
    let own = &function["Properties"][name];
    if own.is_null() { &template["Globals"]["Function"][name] } else { own }
}

/// A value, or the default of the parameter that it refers to.
fn resolved<'v>(template: &'v Value, value: &'v Value) -> &'v Value {
    value["Ref"].as_str().map_or(value, |name| &template["Parameters"][name]["Default"])
}

/// A function's events of a type: their names and properties.
fn events<'t>(function: &'t Value, kind: &'t str) -> impl Iterator<Item = (&'t str, &'t Value)> {
    let events = function["Properties"]["Events"].as_object().into_iter().flatten();
    events
        .filter(move |(_, event)| event["Type"] == kind)
        .map(|(name, event)| (name.as_str(), &event["Properties"]))
}
