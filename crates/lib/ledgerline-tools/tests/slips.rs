//! Slips in the wiring of a new workspace, each made once. Without a check, a slip shows only on
//! AWS: an event or a commit does not arrive, or a failure raises no alarm.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "in a test a panic is the report")]

mod by_hand;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::LazyLock,
};

use ledgerline::manifest::Manifests;
use ledgerline_sam::{check, template::Source};
use serde_json::{Value, json};

use self::by_hand::{by_hand, unwrapped};

/// A new workspace.
static SHOP: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap().keep().join("shop");
    ledgerline_tools::new_workspace(&folder).unwrap();
    folder
});

/// Returns the problems of this template, with these manifests of the functions.
fn said(template: &str, manifests: &Value) -> Vec<String> {
    let path = SHOP.join("template.yaml");
    let source = match Source::parse(template, &path) {
        Ok(source) => source,
        Err(error) => return vec![error.to_string()],
    };
    let manifests: Manifests = serde_json::from_value(manifests.clone()).unwrap();
    let runbook = fs::read_to_string(SHOP.join("docs/runbook.md")).unwrap();
    let mut said = check::problems(&source, &manifests, &runbook);
    said.extend(ledgerline_tools::sample_problems(&source, &manifests, &SHOP));
    said
}

fn template() -> String {
    unwrapped(&fs::read_to_string(SHOP.join("template.yaml")).unwrap())
}

/// Returns the manifests of the workspace's functions. The test of the starter compares them with
/// the manifests that the functions print.
fn manifests() -> Value {
    serde_json::from_str(&fs::read_to_string(SHOP.join("manifest.json")).unwrap()).unwrap()
}

#[test]
fn a_new_workspace_has_no_problems() {
    assert_eq!(said(&template(), &manifests()), Vec::<String>::new());
    // A workspace of an earlier version has no generated blocks, and has the same lines written by
    // hand.
    assert_eq!(said(&by_hand(&template()), &manifests()), Vec::<String>::new());
}

/// A slip in the template: a text in it, the text that replaces it, and the problem that must be
/// reported.
type Slip = (&'static str, &'static str, &'static str);

/// Slips in the routes, and in the rights to call them.
const CALLERS: [Slip; 7] = [
    (
        "    - - ItemCommands\n      - ItemsQueries\n    # </generated>\n    - ${Function}Url:",
        "    - - ItemCommands\n      - Fanout\n    # </generated>\n    - ${Function}Url:",
        "the loop Urls has Fanout, which gets no URL",
    ),
    (
        "Parameters: [BusEvents, ",
        "Parameters: [",
        "BusEvents: no group of AWS::CloudFormation::Interface has the parameter",
    ),
    (
        "Path: \"/items\"\n            Auth: { AuthorizationScopes: [shop/write] }",
        "Path: \"/items\"\n            Auth: { AuthorizationScopes: [shop/read] }",
        "POST /items must require the scope shop/write",
    ),
    (
        "Path: \"/items\"\n",
        "Path: \"/item\"\n",
        "its code has no route POST /item; choose one of: POST /items,",
    ),
    (
        "Method: GET\n            Path: \"/items/{id}\"",
        "Method: PUT\n            Path: \"/items/{id}\"",
        "Method: GET, Path: /items/{id}",
    ),
    (
        "        PostItemsIdName:
          Type: HttpApi
          Properties:
            ApiId: !Ref HttpApi
            Method: POST
            Path: \"/items/{id}/name\"
            Auth: { AuthorizationScopes: [shop/write] }
",
        "",
        "no event has its route POST /items/{id}/name",
    ),
    (
        "AuthorizationScopes: [shop/read]",
        "AuthorizationScopes: [shp/read]",
        "GET /items/{id} must require the scope shop/read",
    ),
];

/// Slips in the permissions of the functions.
const RIGHTS: [Slip; 12] = [
    (
        "              - { Effect: Allow, Action: events:PutEvents,",
        "              - { Effect: Allow, Action: dynamodb:PutItem, Resource: \"arn:aws:dynamodb:eu-central-1:123456789012:table/shop-CommitsTable\" }
              - { Effect: Allow, Action: events:PutEvents,",
        "FanoutFunction does not need dynamodb:PutItem on arn:aws:dynamodb",
    ),
    (
        "              - { Effect: Allow, Action: events:PutEvents,",
        "              - { Effect: Allow, Action: dynamodb:PutItem, Resource: !Join [\"\", [!GetAtt CommitsTable.Arn, \"\"]] }
              - { Effect: Allow, Action: events:PutEvents,",
        "FanoutFunction does not need dynamodb:PutItem on",
    ),
    (
        "- { Effect: Allow, Action: dynamodb:GetItem, Resource: !GetAtt ItemsTable.Arn }",
        "- { Effect: Allow, Action: [dynamodb:GetItem, dynamodb:Scan], Resource: !GetAtt ItemsTable.Arn }",
        "ItemsQueriesFunction does not need dynamodb:Scan on ItemsTable",
    ),
    (
        "- { Effect: Allow, Action: dynamodb:GetItem, Resource: !GetAtt ItemsTable.Arn }",
        "- { Effect: Allow, Action: dynamodb:GetItem, Resource: !GetAtt ItemHistoryTable.Arn }",
        "ItemsQueriesFunction needs dynamodb:GetItem on ItemsTable",
    ),
    ("                  - !GetAtt ItemHistoryQueue.Arn\n", "", "FanoutFunction needs sqs:SendMessage on ItemHistoryQueue"),
    (
        "              - { Effect: Allow, Action: lambda:InvokeFunction, Resource: !Sub \"${ItemsProjectorFunction.Arn}:live\" }\n",
        "",
        "FanoutFunction needs lambda:InvokeFunction on ItemsProjectorFunction:live",
    ),
    (
        "Action: [sqs:SendMessage, sqs:ReceiveMessage,",
        "Action: [sqs:ReceiveMessage,",
        "ItemsProjectorFunction needs sqs:SendMessage on ItemsRetryQueue",
    ),
    (
        "{ Effect: Allow, Action: [logs:CreateLogStream, logs:PutLogEvents], Resource: !GetAtt FunctionLogs.Arn }, ",
        "",
        "ItemCommandsFunction needs logs:PutLogEvents on FunctionLogs",
    ),
    (
        ", Condition: { \"ForAllValues:StringLike\": { dynamodb:LeadingKeys: [!Sub \"${Category}-*\"] } } }\n",
        " }\n",
        "ItemCommandsFunction needs dynamodb:PartiQLInsert on CommitsTable (item-*)",
    ),
    (
        "dynamodb:LeadingKeys: [!Sub \"${Category}-*\"]",
        "dynamodb:LeadingKeys: [\"*\"]",
        "ItemCommandsFunction does not need dynamodb:PartiQLInsert on CommitsTable (*)",
    ),
    (
        "Action: dynamodb:PartiQLInsert, Resource: !GetAtt RequestsTable.Arn, Condition: { \"ForAllValues:StringLike\": { dynamodb:LeadingKeys: [\"* *\"] } } }",
        "Action: [dynamodb:PartiQLInsert, dynamodb:UpdateItem], Resource: !GetAtt RequestsTable.Arn }",
        "ItemCommandsFunction does not need dynamodb:UpdateItem on RequestsTable",
    ),
    ("    - - item\n", "    - - gone\n      - item\n", "goneCommandsRole: no function has this role"),
];

/// Slips in the delivery of events and commits.
const EVENTS: [Slip; 14] = [
    (
        "            ${ItemsProjectorFunction}:live item\n",
        "",
        "the fanout sends it no states: add the line ${ItemsProjectorFunction}:live item",
    ),
    (
        "${ItemsProjectorFunction}:live item\n",
        "${ItemsProjectorFunction}:live itme\n",
        "ItemsProjectorFunction needs the states of item: write ${ItemsProjectorFunction}:live item",
    ),
    (
        "${ItemsProjectorFunction}:live item\n",
        "${ItemsProjectorFunction} item\n",
        "ItemsProjectorFunction needs the states of item: write ${ItemsProjectorFunction}:live item",
    ),
    (
        "            ${ItemsProjectorFunction}:live item\n",
        "            ${ItemHistoryProjectorFunction}:live item\n            ${ItemsProjectorFunction}:live item\n",
        "STATE_VIEWS has ItemHistoryProjectorFunction, which is not a function of a state view",
    ),
    (
        "        Again: { Type: SQS",
        "        Changed: { Type: EventBridgeRule, Properties: { Pattern: { source: [shop.item] } } }\n        Again: { Type: SQS",
        "the fanout sends it the same states: delete the rule, or its line in STATE_VIEWS",
    ),
    (
        "detail-type: [ItemCreated, ItemRenamed]",
        "detail-type: [ItemCreated]",
        "the rule does not match ItemRenamed",
    ),
    (
        "detail-type: [ItemCreated, ItemRenamed]",
        "detail-type: [ItemCreated, ItemRenamed, ItemSold]",
        "its aggregate has no events ItemSold; choose from: ItemCreated, ItemRenamed",
    ),
    ("source: [shop.item]", "source: [shop.itme]", "its events have the source shop.item"),
    (
        "${ItemHistoryQueue} item\n",
        "${ItemHistoryQueue} itme\n",
        "ItemHistoryQueue gets the commits of itme",
    ),
    ("            ${ItemHistoryQueue} item\n", "", "add the line ${ItemHistoryQueue} item"),
    (
        "            ${ItemHistoryQueue} item\n",
        "            ${ItemHistoryQueue} item\n            ${FanoutDeadLetterQueue} item\n",
        "which no function reads",
    ),
    (
        "EventBusName: !Ref EventBus,\n",
        "EventBusName: default,\n",
        "the rule is on no bus of the template",
    ),
    (
        "            ItemRenamed\n",
        "",
        "the fanout does not send ItemRenamed to the bus, but a rule of ItemsProjectorFunction matches them: add the types to BUS_EVENTS",
    ),
    (
        "Stream: !GetAtt CommitsTable.StreamArn",
        "Stream: !GetAtt RequestsTable.StreamArn",
        "Stream: !GetAtt CommitsTable.StreamArn",
    ),
];

/// Slips in the tables and variables.
const TABLES: [Slip; 13] = [
    (
        "AttributeDefinitions: [{ AttributeName: id, AttributeType: S }]
      KeySchema: [{ AttributeName: id, KeyType: HASH }]",
        "AttributeDefinitions: [{ AttributeName: itemId, AttributeType: S }]
      KeySchema: [{ AttributeName: itemId, KeyType: HASH }]",
        "ItemsProjectorFunction expects the keys id (HASH), not itemId (HASH)",
    ),
    (
        "KeySchema: [{ AttributeName: owner, KeyType: HASH }, { AttributeName: entry, KeyType: RANGE }]",
        "KeySchema: [{ AttributeName: owner, KeyType: HASH }]",
        "expects the keys owner (HASH), entry (RANGE), not owner (HASH)",
    ),
    (
        "      TimeToLiveSpecification: { AttributeName: tombstone, Enabled: true }",
        "      GlobalSecondaryIndexes: [{ IndexName: byName, KeySchema: [{ AttributeName: name, KeyType: HASH }], Projection: { ProjectionType: ALL } }]
      TimeToLiveSpecification: { AttributeName: tombstone, Enabled: true }",
        "no function reads the index byName",
    ),
    ("CommitsTable, ITEMS_TABLE: !Ref ItemsTable } }", "CommitsTable } }", "the variable ITEMS_TABLE is missing"),
    ("CommitsTable, ITEMS_TABLE: !Ref ItemsTable } }", "CommitsTable, ITEM_TABLE: !Ref ItemsTable } }", "it does not read the variable ITEM_TABLE"),
    ("CommitsTable, ITEMS_TABLE: !Ref ItemsTable } }", "CommitsTable, ITEMS_TABLE: !Ref RequestsTable } }", "ITEMS_TABLE names RequestsTable: the table must be named ItemsTable"),
    ("CommitsTable, ITEMS_TABLE: !Ref ItemsTable } }", "CommitsTable, ITEMS_TABLE: shop-ItemsTable } }", "ITEMS_TABLE names no table of the template: write !Ref ItemsTable"),
    ("        PROBLEM_TYPES: ", "        PROBLEM_TYPE: ", "the variable PROBLEM_TYPES is missing"),
    ("        PROBLEM_TYPES: ", "        PROBLEM_TYPE: ", "no function reads the variable PROBLEM_TYPE"),
    (", BatchSize: 10,", ", BatchSise: 10,", "BatchSise"),
    ("  ItemsTable:\n", "  SpareTable: { Type: AWS::DynamoDB::Table, Properties: {} }\n  ItemsTable:\n", "SpareTable: no function reads or writes it"),
    ("AttributeName: version, AttributeType: N", "AttributeName: version, AttributeType: S", "version must have AttributeType: N"),
    ("        METRICS_NAMESPACE: !Sub shop/${AWS::StackName}\n", "", "the variable METRICS_NAMESPACE is missing"),
];

fn slips() -> Vec<Slip> {
    [&CALLERS[..], &RIGHTS, &EVENTS, &TABLES].concat()
}

/// Returns the template with a rule of the bus that delivers states to the view.
fn ruled() -> String {
    let without = |template: String, text: &str| {
        assert!(template.contains(text), "{text}");
        template.replace(text, "")
    };
    let template = without(template(), "            ${ItemsProjectorFunction}:live item\n");
    let invoke = "              - { Effect: Allow, Action: lambda:InvokeFunction, Resource: !Sub \"${ItemsProjectorFunction.Arn}:live\" }\n";
    let again = "        Again: { Type: SQS, Properties: { Queue: !GetAtt ItemsRetryQueue.Arn";
    let changed = "        Changed: { Type: EventBridgeRule, Properties: { RuleName: !Sub \"${AWS::StackName}-Items\", EventBusName: !Ref EventBus,
            Pattern: { source: [shop.item], detail-type: [ItemCreated, ItemRenamed] },
            DeadLetterConfig: { Arn: !GetAtt ItemsRetryQueue.Arn } } }\n";
    let function = "  ItemsProjectorFunction:\n    Type";
    let others = "  ItemsRetryQueuePolicy:
    Type: AWS::SQS::QueuePolicy
    Properties:
      Queues: [!Ref ItemsRetryQueue]
      PolicyDocument:
        Version: \"2012-10-17\"
        Statement:
          - { Effect: Allow, Principal: { Service: events.amazonaws.com }, Action: sqs:SendMessage, Resource: !GetAtt ItemsRetryQueue.Arn,
              Condition: { ArnEquals: { aws:SourceArn: !Sub \"arn:${AWS::Partition}:events:${AWS::Region}:${AWS::AccountId}:rule/${EventBus}/${AWS::StackName}-Items\" } } }
  ItemsRuleFailures:
    Type: AWS::CloudWatch::Alarm
    Properties: { AlarmDescription: !Sub \"See ${RunbookUrl}#function-errors\",
        Namespace: AWS/Events, MetricName: FailedInvocations, Dimensions: [{ Name: EventBusName, Value: !Ref EventBus }, { Name: RuleName, Value: !Sub \"${AWS::StackName}-Items\" }],
        Statistic: Sum, Period: 60, EvaluationPeriods: 1, Threshold: 0, ComparisonOperator: GreaterThanThreshold, TreatMissingData: notBreaching, AlarmActions: [!Ref AlarmTopic] }\n";
    let sent = "            ${BusEvents}\n";
    let types = "            ItemCreated\n            ItemRenamed\n";
    let template = without(template, invoke).replace(sent, &format!("{sent}{types}"));
    let template = template.replace(again, &format!("{changed}{again}"));
    template.replace(function, &format!("{others}{function}"))
}

/// Returns the template with this slip. If the template does not contain the text of the slip, the
/// result is made from the template with a rule.
fn with((text, instead, _): Slip) -> String {
    let whole = [template(), ruled()].into_iter().find(|template| template.contains(text));
    let whole = whole.unwrap_or_else(|| panic!("there is no {text}"));
    let (before, after) = whole.split_once(text).unwrap_or_default();
    format!("{before}{instead}{after}")
}

/// An index of keys has no rows for a query of whole rows. An index of whole rows costs a write
/// each time, although a query of keys does not need the rows.
#[test]
fn an_index_with_another_projection_than_its_query_reads_is_reported() {
    let keys = "KeySchema: [{ AttributeName: id, KeyType: HASH }]\n      TimeToLive";
    let index = |projection: &str| {
        format!(
            "KeySchema: [{{ AttributeName: id, KeyType: HASH }}]\n      GlobalSecondaryIndexes: [{{ IndexName: byName, KeySchema: \
             [{{ AttributeName: createdBy, KeyType: HASH }}, {{ AttributeName: name, KeyType: RANGE }}], \
             Projection: {{ ProjectionType: {projection} }} }}]\n      TimeToLive"
        )
    };
    for (there, read, says) in [
        (
            "ALL",
            "KEYS_ONLY",
            "reads keys alone from the index byName: write ProjectionType: KEYS_ONLY",
        ),
        ("KEYS_ONLY", "ALL", "reads whole rows from the index byName: write ProjectionType: ALL"),
    ] {
        let template = with((keys, index(there).leak(), ""));
        let mut manifests = manifests();
        manifests["items-queries"]["tables"][0]["indexes"] = json!([{ "name": "byName", "partition": "createdBy", "sort": "name", "projection": read }]);
        let problems = said(&template, &manifests);
        assert!(problems.iter().any(|problem| problem.contains(says)), "{problems:#?}");
    }
}

/// A view may get its states from a rule of the bus instead of the fanout, like other consumers of
/// the bus.
#[test]
fn a_rule_of_the_bus_may_deliver_states_to_a_view() {
    assert_eq!(said(&ruled(), &manifests()), Vec::<String>::new());
}

#[test]
fn a_slip_in_the_template_is_reported_with_its_line() {
    let mut unnoticed = Vec::new();
    for slip @ (text, instead, says) in slips() {
        // `by_hand` removes the marks of generated blocks, so that `check` reports the slip itself.
        let problems = said(&by_hand(&with(slip)), &manifests());
        let noticed = problems.iter().find(|problem| problem.contains(says));
        match noticed {
            Some(problem) if problem.contains("template.yaml:") => {}
            _ => unnoticed.push(format!("{text}\n-> {instead}\n{says}\nbut: {problems:#?}")),
        }
        // With the marks, one of two reports is enough: the problem of the slip, or the generated
        // block that the slip makes stale.
        let problems = said(&with(slip), &manifests());
        let stale = problems.iter().find(|problem| problem.contains(": the generated block `"));
        if !problems.iter().any(|problem| problem.contains(says)) && stale.is_none() {
            unnoticed.push(format!("{text}\n-> {instead}\nin a block\nbut: {problems:#?}"));
        }
    }
    assert!(unnoticed.is_empty(), "{}", unnoticed.join("\n\n"));
}

/// Slips in the manifests of the functions: a place, its new value, and the problem that must be
/// reported. The template is unchanged.
fn slips_in_manifests() -> Vec<(&'static str, Value, &'static str)> {
    let by_creator = json!({ "name": "byCreator", "partition": "createdBy", "sort": "name", "projection": "ALL" });
    vec![
        (
            "/items-queries/tables/0/indexes",
            json!([by_creator]),
            "ItemsQueriesFunction reads the index byCreator, with the keys createdBy (HASH), name (RANGE), which is missing",
        ),
        (
            "/items-queries/tables/0/indexes",
            json!([by_creator]),
            "ItemsQueriesFunction needs dynamodb:Query on ItemsTable/index/byCreator",
        ),
        (
            "/items-queries/tables/0/partition",
            json!("itemId"),
            "ItemsQueriesFunction expects the keys itemId (HASH), not id (HASH)",
        ),
        (
            "/items-queries/source/http/0/route",
            json!("GET /items/{id}/name"),
            "no event has its route GET /items/{id}/name",
        ),
        ("/items-queries/source/http/0/scope", json!("write"), "must require the scope shop/write"),
        (
            "/items-queries/source/http/0/route",
            json!("GET /things/{id}"),
            "no sample event shows GET /things/{id}",
        ),
        (
            "/items-projector/source/states/category",
            json!("thing"),
            "needs the states of thing: write ${ItemsProjectorFunction}:live thing",
        ),
        (
            "/items-projector/source/states/events",
            json!(["ItemCreated", "StateRepublished"]),
            "its aggregate has an event with the reserved name StateRepublished: rename the event",
        ),
        (
            "/items-projector/source",
            json!({ "queue": ["item"] }),
            "STATE_VIEWS has ItemsProjectorFunction, which is not a function of a state view",
        ),
        (
            "/items-projector/variables",
            json!(["ITEMS_TABLE", "TAX_RATE"]),
            "the variable TAX_RATE is missing",
        ),
        (
            "/item-history-projector/source/queue",
            json!(["item", "cart"]),
            "write ${ItemHistoryQueue} cart item",
        ),
        (
            "/item-history-projector/tables/0/actions",
            json!({ "dynamodb:PutItem": [], "dynamodb:UpdateItem": [] }),
            "ItemHistoryProjectorFunction needs dynamodb:UpdateItem on ItemHistoryTable",
        ),
        (
            "/item-history-projector/tables/0/variable",
            json!("ITEMS_TABLE"),
            "ItemHistoryTable: no function reads or writes it",
        ),
        (
            "/item-history-projector/metrics",
            json!(["LostItems"]),
            "no alarm monitors LostItems of Function=ItemHistoryProjectorFunction",
        ),
        ("/fanout/calls", json!([]), "FanoutFunction does not need events:PutEvents on EventBus"),
    ]
}

/// Returns the problems after this change of a value in the manifests.
fn said_of(pointer: &str, value: Value) -> Vec<String> {
    let mut manifests = manifests();
    // The text of a manifest has no empty fields, so the field itself may be missing.
    let (parent, field) = pointer.rsplit_once('/').unwrap();
    manifests.pointer_mut(parent).unwrap_or_else(|| panic!("{pointer}"))[field] = value;
    said(&by_hand(&template()), &manifests)
}

#[test]
fn a_slip_in_a_manifest_is_reported() {
    for (pointer, value, says) in slips_in_manifests() {
        let problems = said_of(pointer, value);
        let noticed = problems.iter().any(|problem| problem.contains(says));
        assert!(noticed, "{pointer}: {says}\nbut: {problems:#?}");
    }
}

/// Copies the folders of sample events and answers into this folder.
fn copy_samples(to: &Path) {
    for folder in ["events", "tests/answers"] {
        for function in fs::read_dir(SHOP.join(folder)).unwrap() {
            let function = function.unwrap();
            let to = to.join(folder).join(function.file_name());
            fs::create_dir_all(&to).unwrap();
            for file in fs::read_dir(function.path()).unwrap() {
                let file = file.unwrap();
                fs::copy(file.path(), to.join(file.file_name())).unwrap();
            }
        }
    }
}

/// Deleted files of samples, and the problem that must be reported.
const SAMPLES: [(&[&str], &str); 5] = [
    (
        &["events/item-commands/rename.json"],
        "has answers to no event; write `events/item-commands/rename.json`",
    ),
    (&["events/items-queries/get.json"], "`events/items-queries` has no event"),
    (
        &["tests/answers/item-commands/create.json"],
        "`tests/answers/item-commands/create.json` is missing; write",
    ),
    (
        &["tests/answers/items-queries/get.json"],
        "`tests/answers/items-queries/get.json` is missing; write",
    ),
    // Without an event and its answers, no file is missing, but the route has no sample.
    (
        &["events/item-commands/rename.json", "tests/answers/item-commands/rename.json"],
        "no sample event shows POST /items/{id}/name",
    ),
];

/// Returns the problems of a new workspace without these files.
fn said_without(deleted: &[&str]) -> Vec<String> {
    let source = Source::read(&SHOP.join("template.yaml")).unwrap();
    let manifests: Manifests = serde_json::from_value(manifests()).unwrap();
    let copy = tempfile::tempdir().unwrap();
    copy_samples(copy.path());
    deleted.iter().for_each(|path| fs::remove_file(copy.path().join(path)).unwrap());
    ledgerline_tools::sample_problems(&source, &manifests, copy.path())
}

#[test]
fn a_deleted_sample_event_or_answer_is_reported() {
    assert_eq!(said_without(&[]), Vec::<String>::new());
    for (deleted, says) in SAMPLES {
        let problems = said_without(deleted);
        assert!(problems.len() == 1 && problems[0].contains(says), "{deleted:?}: {problems:?}");
    }
}

/// Users may make these changes, so the check reports no problem.
#[test]
fn allowed_changes_of_the_template_are_not_reported() {
    for (text, instead) in [
        ("        PROBLEM_TYPES: ", "        SOURCE_ADDRESSES: \"true\"\n        PROBLEM_TYPES: "),
        ("        PROBLEM_TYPES: ", "        RUST_BACKTRACE: \"1\"\n        PROBLEM_TYPES: "),
        (
            "CommitsTable, ITEMS_TABLE: !Ref ItemsTable } }",
            "CommitsTable, ITEMS_TABLE: !Ref ItemsTable, AWS_LAMBDA_EXEC_WRAPPER: /opt/wrapper } }",
        ),
    ] {
        let said = said(&with((text, instead, "")), &manifests());
        assert_eq!(said, Vec::<String>::new(), "{instead}");
    }
}
