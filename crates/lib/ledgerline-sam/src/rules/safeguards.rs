//! Checks that stored data survives, and that a failed event is retried and never lost (rule 11).

use serde_json::{Value, json};

use super::Rules;
use crate::lookup::{BODIES, COMMITS, FAILURES, OPERATIONS, SEQUENCE, list, logical_id};

const REQUESTS: &str = "RequestsTable";

pub(super) fn check(rules: &mut Rules<'_>) {
    check_data(rules);
    let lines = |name| {
        let values = rules.functions().map(|(_, it)| &it["Environment"]["Variables"][name]);
        values.flat_map(texts).collect::<String>()
    };
    let (views, logs) = (lines("STATE_VIEWS"), lines("LOG_QUEUES"));
    for (id, function) in rules.functions() {
        let bus = rules.events(id, "EventBridgeRule");
        // The fanout or a rule of the bus invokes the function, asynchronously.
        let takes_states = views.contains(&format!("${{{id}}}")) || !bus.is_empty();
        let mut read = Vec::new();
        for (path, event) in rules.events(id, "SQS") {
            let expected = match takes_states {
                // One event that crashes the function must not use up the attempts of others.
                true => json!({ "BatchSize": 1 }),
                // Otherwise Lambda redelivers all records.
                false => json!({ "FunctionResponseTypes": ["ReportBatchItemFailures"] }),
            };
            rules.expect(id, &path, &expected);
            let limit = &event["ScalingConfig"]["MaximumConcurrency"];
            rules.require(!limit.is_null(), id, &path, "it may use all of the account's concurrency: write ScalingConfig: { MaximumConcurrency: !Ref QueueConcurrency }");
            let Some(queue) = logical_id(&event["Queue"]) else { continue };
            let timeout = function_property(rules, function, "Timeout");
            check_queue(rules, queue, timeout, logs.contains(&format!("${{{queue}}}")));
            read.push(queue);
        }
        for (path, event) in rules.events(id, "DynamoDB") {
            check_stream(rules, id, &path, event);
        }
        for (path, event) in bus {
            let queue = logical_id(&event["DeadLetterConfig"]["Arn"]).unwrap_or_default();
            rules.require(read.contains(&queue), id, &format!("{path}/DeadLetterConfig"), "events that EventBridge cannot deliver are lost: write DeadLetterConfig: { Arn: !GetAtt <name>RetryQueue.Arn }, and an SQS event with that queue");
            check_policy(rules, queue, event["RuleName"]["Fn::Sub"].as_str().unwrap_or_default());
        }
        let queue = destination(function_property(rules, function, "EventInvokeConfig"))
            .unwrap_or_default();
        rules.require(read.contains(&queue) || !takes_states, id, "EventInvokeConfig", "events at which it always fails are lost: write EventInvokeConfig: { DestinationConfig: { OnFailure: { Type: SQS, Destination: !GetAtt <name>RetryQueue.Arn } } }, and an SQS event with that queue");
    }
}

/// Checks that data that cannot be rebuilt survives mistakes and the deletion of the stack.
fn check_data(rules: &mut Rules<'_>) {
    for (id, properties) in rules.resources("") {
        let is_log = [COMMITS, OPERATIONS, REQUESTS, SEQUENCE].contains(&id);
        let protection = match rules.kind(id) {
            "AWS::Cognito::UserPool" => "DeletionProtection",
            "AWS::DynamoDB::Table" if is_log || id.ends_with("PositionsTable") => {
                let recovery = json!({ "PointInTimeRecoveryEnabled": true });
                rules.expect(id, "PointInTimeRecoverySpecification", &recovery);
                "DeletionProtectionEnabled"
            }
            "AWS::S3::Bucket" if id == BODIES => {
                check_retention(rules, id);
                let is_kept = properties["LifecycleConfiguration"].is_null();
                let message = "a rule that expires objects removes commits: delete it (rule 3)";
                rules.require(is_kept, id, "LifecycleConfiguration", message);
                continue;
            }
            "AWS::S3::Bucket" if id == FAILURES => {
                check_retention(rules, id);
                rules.expect_private(id);
                continue;
            }
            "AWS::S3::BucketPolicy" if logical_id(&properties["Bucket"]) == Some(BODIES) => {
                check_retention(rules, id);
                continue;
            }
            kind => {
                let is_kept =
                    kind == "AWS::Logs::LogGroup" && properties["RetentionInDays"].is_null();
                let message = "logs are kept for ever: write RetentionInDays: !Ref LogRetention";
                rules.require(!is_kept, id, "", message);
                continue;
            }
        };
        check_retention(rules, id);
        let is_off =
            [json!(null), json!(false), json!("INACTIVE")].contains(&properties[protection]);
        let message = format!("a mistake could delete it: write {protection}: !If [IsProd, …]");
        rules.require(!is_off, id, "", message);
    }
    // With another view type, the records would have no commits.
    rules.expect(COMMITS, "StreamSpecification", &json!({ "StreamViewType": "NEW_IMAGE" }));
    if !rules.kind(REQUESTS).is_empty() {
        let expiry = json!({ "AttributeName": "expires", "Enabled": true });
        rules.expect(REQUESTS, "TimeToLiveSpecification", &expiry);
    }
}

/// Returns all texts in a value. The value of a variable with conditional lines has several.
fn texts(value: &Value) -> Vec<&str> {
    match value {
        Value::String(text) => vec![text],
        Value::Array(items) => items.iter().flat_map(texts).collect(),
        Value::Object(entries) => entries.values().flat_map(texts).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) => Vec::new(),
    }
}

fn check_retention(rules: &mut Rules<'_>, id: &str) {
    for policy in ["DeletionPolicy", "UpdateReplacePolicy"] {
        let written = rules.json["Resources"][id][policy].as_str();
        let retains = written.is_some_and(|policy| policy.starts_with("Retain"));
        let message = format!("its data would be deleted with the stack: write {policy}: Retain");
        rules.require(retains, id, "", message);
    }
}

fn check_stream(rules: &mut Rules<'_>, id: &str, path: &str, event: &Value) {
    rules.expect(id, path, &json!({ "FunctionResponseTypes": ["ReportBatchItemFailures"] }));
    if logical_id(&event["Stream"]) == Some(COMMITS) {
        rules.expect(id, path, &json!({ "StartingPosition": "TRIM_HORIZON" }));
    }
    let variables = rules.property(id, "Environment/Variables");
    let is_sequencer = !variables["SEQUENCE_TABLE"].is_null();
    if !is_sequencer {
        let message = "it hides changes of commits (rule 3): delete FilterCriteria";
        rules.require(
            event["FilterCriteria"].is_null(),
            id,
            &format!("{path}/FilterCriteria"),
            message,
        );
    } else {
        // With several filters, a record needs to match only one. The fanout reports changes of
        // commits, and the sequencer would report each a second time.
        let inserts = json!([{ "Pattern": "{\"eventName\": [\"INSERT\"]}" }]);
        rules.expect(id, &format!("{path}/FilterCriteria"), &json!({ "Filters": inserts }));
        // `$all` would lack the commit of a record that Lambda no longer retries.
        let endless = json!({ "MaximumRetryAttempts": -1, "MaximumRecordAgeInSeconds": -1 });
        return rules.expect(id, path, &endless);
    }
    for key in ["MaximumRetryAttempts", "MaximumRecordAgeInSeconds"] {
        // By default, one record would stop its shard until it leaves the stream.
        let message = format!("without a limit, one poison pill stops its shard: write {key}");
        rules.require(event[key].as_i64() >= Some(0), id, &format!("{path}/{key}"), message);
    }
    rules.expect(id, path, &json!({ "BisectBatchOnFunctionError": true }));
    let queue = rules.dead_letter_queue(event);
    let message = "records that Lambda no longer retries are lost: write DestinationConfig: { OnFailure: { Type: S3, … } }, a bucket with EventBridgeEnabled: true, and an AWS::Events::Rule whose target is the dead-letter queue";
    let letters = &variables["DEAD_LETTER_QUEUE"];
    // `ledger` redrives a batch by its object.
    let is_bucket = rules.kind(destination(event).unwrap_or_default()) == "AWS::S3::Bucket";
    let is_there = is_dead_letter_queue(rules, queue, false) && (is_bucket || letters.is_null());
    rules.require(is_there, id, &format!("{path}/DestinationConfig"), message);
    let is_same = letters.is_null() || logical_id(letters) == queue;
    let message = "DEAD_LETTER_QUEUE must be the queue of DestinationConfig of the stream";
    rules.require(is_same, id, "Environment/Variables/DEAD_LETTER_QUEUE", message);
    let rule = destination(event).and_then(|bucket| rules.object_rule(bucket));
    if let (Some((rule, _)), Some(queue)) = (rule, queue) {
        check_policy(rules, queue, rule);
    }
}

/// Checks a queue that a function reads. The fanout fills queues of commits.
fn check_queue(rules: &mut Rules<'_>, id: &str, timeout: &Value, has_commits: bool) {
    if has_commits {
        // Otherwise all streams share 300 calls a second and one set of deduplication ids.
        let limits = json!({ "FifoQueue": true, "DeduplicationScope": "messageGroup",
            "FifoThroughputLimit": "perMessageGroupId" });
        rules.expect(id, "", &limits);
    }
    let is_fifo = *rules.property(id, "FifoQueue") == true;
    let redrive = rules.property(id, "RedrivePolicy");
    let (end, kind) = match is_fifo {
        true => ("stops its stream for ever", "a FIFO queue too"),
        false => ("is retried for two weeks and lost", "no FIFO queue"),
    };
    let is_there =
        is_dead_letter_queue(rules, logical_id(&redrive["deadLetterTargetArn"]), is_fifo);
    rules.require(is_there, id, "RedrivePolicy", format!("a message that always fails {end}: write RedrivePolicy: {{ deadLetterTargetArn: !GetAtt <name>DeadLetterQueue.Arn, maxReceiveCount: 90 }}, and that queue is {kind}"));
    let most = redrive["maxReceiveCount"].as_i64();
    let is_limit = most.is_some_and(|most| (2..=1_000).contains(&most));
    rules.require(is_limit, id, "RedrivePolicy", "write a maxReceiveCount from 2 to 1000");
    let seconds = |value: &Value, default| {
        let parameter = &rules.json["Parameters"][value["Ref"].as_str().unwrap_or_default()];
        parameter.get("Default").unwrap_or(value).as_i64().unwrap_or(default)
    };
    // These are the defaults of Lambda and SQS.
    let (timeout, visibility) =
        (seconds(timeout, 3), seconds(rules.property(id, "VisibilityTimeout"), 30));
    rules.require(visibility >= timeout, id, "VisibilityTimeout", format!("SQS redelivers a message before the function's timeout: write a VisibilityTimeout of at least {timeout}"));
}

/// Whether a queue of this kind has this logical id. An operator needs its messages for 14 days, the
/// most that SQS allows.
fn is_dead_letter_queue(rules: &mut Rules<'_>, id: Option<&str>, is_fifo: bool) -> bool {
    let Some(id) = id.filter(|id| rules.kind(id) == "AWS::SQS::Queue") else { return false };
    rules.expect(id, "", &json!({ "MessageRetentionPeriod": 1_209_600 }));
    (*rules.property(id, "FifoQueue") == true) == is_fifo
}

/// Checks that EventBridge may send the events of a rule to this queue.
fn check_policy(rules: &mut Rules<'_>, queue: &str, rule: &str) {
    let is_of_rule = |it: &Value| {
        let arn = &it["Condition"]["ArnEquals"]["aws:SourceArn"];
        let name = arn["Fn::Sub"].as_str().and_then(|arn| arn.rsplit_once('/'));
        name.is_some_and(|(_, name)| name == rule) || logical_id(arn) == Some(rule)
    };
    let allows = |it: &Value| {
        it["Principal"]["Service"] == "events.amazonaws.com"
            && it["Effect"] == "Allow"
            && list(&it["Action"]).iter().any(|action| **action == "sqs:SendMessage")
            && logical_id(&it["Resource"]) == Some(queue)
            && is_of_rule(it)
    };
    let policies = rules.resources("AWS::SQS::QueuePolicy").filter(|(_, policy)| {
        list(&policy["Queues"]).iter().any(|known| logical_id(known) == Some(queue))
    });
    let mut statements = policies.flat_map(|(_, it)| list(&it["PolicyDocument"]["Statement"]));
    rules.require(statements.any(allows), queue, "", format!("no AWS::SQS::QueuePolicy lets events.amazonaws.com send events of the rule {rule}: write one"));
}

fn destination(properties: &Value) -> Option<&str> {
    logical_id(&properties["DestinationConfig"]["OnFailure"]["Destination"])
}

/// A property of a function: its own, or that of all functions.
fn function_property<'v>(rules: &Rules<'v>, function: &'v Value, name: &str) -> &'v Value {
    function.get(name).unwrap_or(&rules.json["Globals"]["Function"][name])
}
