//! Compares generated templates with those that are written by hand, resource by resource.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use serde_json::{Value, json};

use super::{Application, Deploy, template};
use crate::{lookup::list, manifests::read_file, template::Source, tests::TANKS};

/// A difference that is wanted: the places where it occurs, and the reason. A part of a place that
/// ends with `*` stands for any with this prefix.
struct Difference {
    at: &'static str,
    reason: &'static str,
}

const fn difference(at: &'static str, reason: &'static str) -> Difference {
    Difference { at, reason }
}

/// The differences of every template.
const COMMON: &[Difference] = &[
    difference("Parameters/*/Description", "one text for every stack"),
    difference("Resources/*/Properties/Description", "a default; deploy.yaml has better texts"),
    difference("Resources/*/Properties/AlarmDescription", "a default"),
    difference("Resources/*/Properties/Policies/0/PolicyName", "the name of the binary"),
];

const TANKS_ONLY: &[Difference] = &[
    difference("Conditions/HasBudget", "every stack can have a budget"),
    difference("Outputs/AlarmTopicArn/Description", "one text for every stack"),
    difference("Parameters/MonthlyBudget", "every stack can have a budget"),
    difference("Resources/Budget", "every stack can have a budget"),
    difference(TOMBSTONES, "every state view can forget an aggregate"),
];

const STARTER_ONLY: &[Difference] = &[
    difference("Outputs/AlarmTopicArn/Description", "one text for every stack"),
    difference("Outputs/NoticeTopicArn", "both topics are outputs"),
    difference("Outputs/SignInUrl/Description", "one text for every stack"),
    difference("Globals/*/*/*/METRICS_NAMESPACE/*", "the name without dashes"),
    difference("Resources/AccountConcurrency", "an alarm of every stack"),
    difference("Resources/ApiScopes/Properties/Scopes", "the order of the scopes"),
    difference("Resources/FailedInvocations/*/*/*/MetricNamespace", "the suffix `Logs`"),
    difference("Resources/FunctionErrors/Properties/Namespace", "the suffix `Logs`"),
    difference("Resources/HttpApi/Properties/AccessLogSettings/Format", "one more field"),
    difference("Resources/ManyRequestsRefused", "an alarm of every stack"),
    difference("Resources/StockDiaryBehind/Properties/Namespace/*", "the name without dashes"),
    difference("Resources/TooManyRequests", "an alarm of every stack"),
    difference("Resources/Unreconciled/Properties/Namespace/*", "the name without dashes"),
];

const ROOT_ONLY: &[Difference] = &[
    difference(TOMBSTONES, "every state view can forget an aggregate"),
    difference(
        "Resources/WelcomeEmailDeadLetterQueue",
        "RetryDeadLetterQueue; deploy.yaml keeps the id",
    ),
    difference("Resources/WelcomeEmailDeadLetterQueueNotEmpty", "follows its queue"),
    difference(
        "Resources/WelcomeEmailFunction/Properties/Events/Changed",
        "deploy.yaml keeps the id",
    ),
    difference(
        "Resources/WelcomeEmailFunction/Properties/Events/Users",
        "deploy.yaml keeps the id",
    ),
    difference("Resources/WelcomeEmailRetryDeadLetterQueue", "deploy.yaml keeps the id"),
    difference("Resources/WelcomeEmailRetryDeadLetterQueueNotEmpty", "follows its queue"),
    difference(
        "Resources/WelcomeEmailRetryQueue/Properties/RedrivePolicy",
        "deploy.yaml keeps the id",
    ),
    difference(
        "Resources/WelcomeEmailRole/*/*/0/PolicyDocument/Statement/{\"Action\":\"ses:SendEmail\"*",
        "a policy of deploy.yaml, below",
    ),
    difference("Resources/WelcomeEmailSender", "the policy of deploy.yaml"),
];

/// The overrides of the tanks.
const TANKS_DEPLOY: &str = r#"
Globals:
  Function: { Environment: { Variables: { PROBLEM_TYPES: "urn:ledgerline:problem:" } } }
"#;

/// The overrides of the root.
const ROOT_DEPLOY: &str = r#"
Metadata: { Ledgerline: { Parts: [Dashboard, WebApp] } }

Parameters:
  MailSender: { Type: String, Default: "", Description: "Sender of mails." }

Resources:
  # One user may have many followers.
  FeedsProjectorFunction: { Properties: { Events: { Commits: { Properties: { BatchSize: 1 } } } } }

  WelcomeEmailFunction:
    Properties:
      Environment: { Variables: { MAIL_SENDER: !Ref MailSender } }
      # The fewest that there can be at once: SES takes so many mails a second, in its sandbox one.
      Events: { Again: { Properties: { ScalingConfig: { MaximumConcurrency: 2 } } } }

  WelcomeEmailSender:
    Type: AWS::IAM::RolePolicy
    Properties:
      RoleName: !Ref WelcomeEmailRole
      PolicyName: send-email
      PolicyDocument:
        Version: "2012-10-17"
        Statement:
          - Effect: Allow
            Action: ses:SendEmail
            Resource:
              - !Sub arn:${AWS::Partition}:ses:${AWS::Region}:${AWS::AccountId}:identity/*
              - !Sub arn:${AWS::Partition}:ses:${AWS::Region}:${AWS::AccountId}:configuration-set/*
            Condition: { StringEquals: { ses:FromAddress: !Ref MailSender } }

  UnsentMails: { Properties: { AlarmActions: [!Ref NoticeTopic] } }
"#;

const TOMBSTONES: &str = "Resources/*/Properties/TimeToLiveSpecification";

/// The leaves of a template by their places, without the text that no service reads. Statements are
/// sets: each has one action on one resource.
fn leaves(template: &Value) -> BTreeMap<String, String> {
    let mut leaves = BTreeMap::new();
    for section in ["Parameters", "Rules", "Conditions", "Globals", "Resources", "Outputs"] {
        add_leaves(&normal(&template[section]), section, &mut leaves);
    }
    leaves
}

fn add_leaves(value: &Value, at: &str, leaves: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(entries) => {
            for (key, value) in entries {
                match (key.as_str(), value) {
                    ("Statement", Value::Array(statements)) => {
                        for statement in statements.iter().flat_map(single) {
                            leaves.insert(format!("{at}/Statement/{statement}"), String::new());
                        }
                    }
                    ("AttributeDefinitions", Value::Array(attributes)) => {
                        for attribute in attributes {
                            leaves.insert(format!("{at}/{key}/{attribute}"), String::new());
                        }
                    }
                    _ => add_leaves(value, &format!("{at}/{key}"), leaves),
                }
            }
        }
        Value::Array(items) => {
            for (place, item) in items.iter().enumerate() {
                add_leaves(item, &format!("{at}/{place}"), leaves);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            leaves.insert(at.to_owned(), value.to_string());
        }
    }
}

/// The value with each `GetAtt` in its short form.
fn normal(value: &Value) -> Value {
    match value {
        Value::Object(entries) => {
            if let Some(path) = entries.get("Fn::GetAtt").and_then(Value::as_array) {
                let path: Vec<_> = path.iter().filter_map(Value::as_str).collect();
                return json!({ "Fn::GetAtt": path.join(".") });
            }
            entries.iter().map(|(key, value)| (key.clone(), normal(value))).collect()
        }
        Value::Array(items) => items.iter().map(normal).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}

/// The statements with one action on one resource each that are together this one.
fn single(statement: &Value) -> Vec<Value> {
    let mut statements = Vec::new();
    for action in list(&statement["Action"]) {
        for resource in list(&statement["Resource"]) {
            let mut single = statement.clone();
            single["Action"] = action.clone();
            single["Resource"] = resource.clone();
            statements.push(single);
        }
    }
    if statements.is_empty() { vec![statement.clone()] } else { statements }
}

/// The places where two templates differ.
fn differences(by_hand: &Value, generated: &Value) -> BTreeSet<String> {
    let (ours, theirs) = (leaves(by_hand), leaves(generated));
    let places: BTreeSet<_> = ours.keys().chain(theirs.keys()).collect();
    places.into_iter().filter(|at| ours.get(*at) != theirs.get(*at)).cloned().collect()
}

fn matches(pattern: &str, at: &str) -> bool {
    let is_part = |(pattern, part): (&str, &str)| match pattern.strip_suffix('*') {
        Some(prefix) => part.starts_with(prefix),
        None => pattern == part,
    };
    let parts: Vec<_> = pattern.split('/').zip(at.split('/')).collect();
    parts.len() == pattern.split('/').count() && parts.into_iter().all(is_part)
}

/// Checks that the templates differ only where the list says so, and that the list has no more.
fn assert_same(by_hand: &Value, generated: &Value, own: &[Difference]) {
    let wanted: Vec<_> = COMMON.iter().chain(own).collect();
    let found = differences(by_hand, generated);
    let is_wanted = |at: &&String| wanted.iter().any(|wanted| matches(wanted.at, at));
    let unwanted: Vec<_> = found.iter().filter(|at| !is_wanted(at)).collect();
    assert!(
        unwanted.is_empty(),
        "the template by hand and the generated one differ. Change generate/parts or a module \
         beside it as well: {unwanted:#?}"
    );
    for Difference { at, reason } in wanted {
        let occurs = found.iter().any(|found| matches(at, found));
        assert!(occurs, "no such difference is left, so delete it: {at} ({reason})");
    }
}

/// The template with the ids of generated roles in place of those of loops. Only functions refer to
/// a role.
fn with_roles(template: &Value, names: &[&str]) -> Value {
    let mut template = template.clone();
    let mut text = template["Resources"].to_string();
    for name in names {
        let role = format!("{}CommandsRole", name.to_lowercase());
        text = text.replace(&format!("\"{role}"), &format!("\"{name}CommandsRole"));
    }
    template["Resources"] = serde_json::from_str(&text).unwrap();
    template
}

fn generate(name: &str, by_hand: &Path, deploy: &str) -> Value {
    let deploy = Deploy::parse(Path::new("deploy.yaml"), deploy).unwrap();
    let application = Application { name: name.to_owned(), parts: deploy.parts().unwrap() };
    let text = template(&application, &read_file(by_hand).unwrap(), &deploy).unwrap();
    Source::parse(&text, by_hand).unwrap().json()
}

#[test]
fn the_generated_template_of_the_tanks_has_the_resources_of_the_hand_written_one() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ledgerline-tank/template.yaml");
    let by_hand = with_roles(&TANKS.json(), &["Haul", "Tank"]);
    assert_same(&by_hand, &generate("tanks", &path, TANKS_DEPLOY), TANKS_ONLY);
}

#[test]
fn the_generated_template_of_the_starter_has_the_resources_of_the_hand_written_one() {
    let starter = "../ledgerline-tools/starter/template.yaml";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(starter);
    let by_hand = with_roles(&Source::read(&path).unwrap().json(), &["StockItem"]);
    assert_same(&by_hand, &generate("north-depot", &path, ""), STARTER_ONLY);
}

#[test]
fn the_generated_template_of_the_root_has_the_resources_of_the_hand_written_one() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../template.yaml");
    let names = ["Account", "Link", "Todo", "Transfer", "User", "Widget"];
    let by_hand = with_roles(&Source::read(&path).unwrap().json(), &names);
    assert_same(&by_hand, &generate("ledgerline", &path, ROOT_DEPLOY), ROOT_ONLY);
}
