//! Checks what the policies of a template allow: those of roles, of people and of resources, and
//! those that SAM would write.

use std::{
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};

use serde_json::{Value, json};

use super::{Rules, names};
use crate::{
    lookup::{BODIES, COMMITS, SEQUENCE, list, logical_id},
    policy,
    template::UNREAD,
};

/// The actions that change or remove an item. The log denies them to every principal (rule 3).
const CHANGES: &str = "dynamodb:BatchWriteItem dynamodb:DeleteItem dynamodb:PartiQLDelete \
    dynamodb:PartiQLUpdate dynamodb:PutItem dynamodb:UpdateItem";
/// The actions of DynamoDB that a principal may call on the log. Any other one may change an item,
/// or remove a protection of the table: its policy, its backups, the table itself.
const HARMLESS: &str = "dynamodb:BatchGetItem dynamodb:DescribeTable dynamodb:GetItem \
    dynamodb:PartiQLInsert dynamodb:Query dynamodb:Scan";
/// The actions of S3 that a principal may call on the bucket of body objects. The policy of the
/// bucket allows a PUT only of a new object.
const HARMLESS_TO_BODIES: &str = "s3:GetObject s3:ListBucket s3:PutObject";
/// The actions that have no resource to name, or none that exists before the call.
const WITHOUT_RESOURCE: &str = "ec2:AssignPrivateIpAddresses ec2:CreateNetworkInterface \
    ec2:DeleteNetworkInterface ec2:DescribeNetworkInterfaces ec2:DescribeSubnets \
    ec2:UnassignPrivateIpAddresses events:ListRules lambda:GetAccountSettings \
    lambda:ListEventSourceMappings lambda:ListFunctions sqs:ListQueues xray:PutTelemetryRecords \
    xray:PutTraceSegments";
/// The policies of resources: types, and the properties that have the document.
const OF_RESOURCES: [[&str; 2]; 7] = [
    ["AWS::Events::EventBusPolicy", "Statement"],
    ["AWS::IAM::Role", "AssumeRolePolicyDocument"],
    ["AWS::KMS::Key", "KeyPolicy"],
    ["AWS::S3::BucketPolicy", "PolicyDocument"],
    ["AWS::SNS::TopicPolicy", "PolicyDocument"],
    ["AWS::SQS::QueuePolicy", "PolicyDocument"],
    ["AWS::SecretsManager::ResourcePolicy", "ResourcePolicy"],
];
/// The attributes that an archive changes or reads, and the keys.
const ARCHIVE_ATTRIBUTES: [&str; 7] =
    ["stream", "version", "body", "command", "events", "meta", "state"];
/// The policy of the role that archives.
const ARCHIVE_POLICY: &str = "ArchivePolicy";
/// The statements of a table's own policy.
const OF_TABLE: &str = "ResourcePolicy/PolicyDocument/Statement";

pub(super) fn check(rules: &mut Rules<'_>) {
    let statements = Rc::clone(&rules.statements);
    let mut policies = BTreeMap::<_, Vec<_>>::new();
    for (id, statement) in statements.iter() {
        policies.entry(id).or_default().push(statement);
        if allows(statement) {
            check_statement(rules, id, statement);
        }
    }
    for table in [COMMITS, SEQUENCE] {
        if rules.kind(table).is_empty() {
            continue;
        }
        policies.iter().for_each(|(id, statements)| check_log(rules, table, id, statements));
        check_denials(rules, table);
    }
    if !rules.kind(BODIES).is_empty() {
        policies.iter().for_each(|(id, statements)| check_log(rules, BODIES, id, statements));
        check_bucket(rules);
    }
    check_archive(rules);
    check_roles(rules);
    check_resources(rules);
}

fn allows(statement: &Value) -> bool {
    list(&statement["Effect"]).iter().any(|effect| **effect == "Allow")
}

/// Whether a list of words has an action. IAM ignores the case of actions.
fn has(words: &str, action: &str) -> bool {
    words.split(' ').any(|word| word.eq_ignore_ascii_case(action))
}

fn texts(values: &Value) -> impl Iterator<Item = &str> {
    list(values).into_iter().filter_map(Value::as_str)
}

fn check_statement(rules: &mut Rules<'_>, id: &str, statement: &Value) {
    let names = !statement["Action"].is_null() && !statement["Resource"].is_null();
    rules.require(names, id, "", "it has NotAction or NotResource: name the actions and resources");
    let condition = &statement["Condition"];
    for action in texts(&statement["Action"]) {
        let message = format!("it allows {action}: name the actions");
        rules.require(!action.contains(['*', '?']), id, "", message);
        let resources = texts(&statement["Resource"]);
        for resource in resources.filter(|it| is_wide(it, condition.is_null())) {
            let message = format!("it allows {action} on {resource}: name the resources");
            rules.require(has(WITHOUT_RESOURCE, action), id, "", message);
        }
    }
    // `ForAllValues` is true for a request without the key (IAM user guide, "Multivalued context
    // keys"). No test in an account has shown whether `PartiQLInsert` has the key. Without it,
    // `Null` would deny each append (docs/decisions.md, 4).
    let is_insert = texts(&statement["Action"]).all(|action| action == "dynamodb:PartiQLInsert");
    let operators = condition.as_object().into_iter().flatten().filter(|_| !is_insert);
    let of_all = operators.filter(|(operator, _)| operator.starts_with("ForAllValues:"));
    for (key, _) in of_all.flat_map(|(_, keys)| keys.as_object().into_iter().flatten()) {
        let null = &condition["Null"][key];
        rules.require(*null == "false" || *null == false, id, "", format!("its ForAllValues is true for a request without {key}: add \"Null\": {{ {key}: \"false\" }}"));
    }
}

/// Whether a pattern matches every resource, or every one of a type, such as `table/*`.
fn is_wide(resource: &str, has_type: bool) -> bool {
    let name = resource.splitn(6, ':').last().unwrap_or_default();
    // The name of a bucket has no type before it.
    let end = name.find(['/', ':']).filter(|_| has_type && !resource.contains(":s3:"));
    let name = end.map_or(name, |end| &name[end + 1..]);
    resource != UNREAD && !name.is_empty() && name.chars().all(|c| "*?".contains(c))
}

/// Returns a statement as wide as it can be: under every condition, in every region and account,
/// and on the table if a resource has its name. `None` for a denial that has a condition.
pub(super) fn widen(statement: &Value, table: &str) -> Option<Value> {
    let is_allowed = allows(statement);
    let id = table.rsplit_once('-').map_or(UNREAD, |(_, id)| id);
    // The name of a bucket has lowercase letters.
    let is_table =
        |text: &str| names(&text.to_lowercase(), &id.to_lowercase()) && !text.contains("/stream/");
    let widen = |text: &str| match text.splitn(6, ':').collect::<Vec<_>>().as_slice() {
        _ if text == UNREAD => "*".to_owned(),
        _ if is_allowed && is_table(text) => table.to_owned(),
        [_, _, service, _, _, name] if is_allowed => format!("arn:*:{service}:*:*:{name}"),
        _ => text.to_owned(),
    };
    let mut wide = json!({ "Effect": if is_allowed { "Allow" } else { "Deny" } });
    for (key, values) in statement.as_object()? {
        match key.as_str() {
            "Action" | "NotAction" => {
                wide[key] = texts(values).map(|action| widen(action).to_lowercase()).collect();
            }
            "Resource" | "NotResource" => wide[key] = texts(values).map(widen).collect(),
            _ => {}
        }
    }
    (is_allowed || statement["Condition"].is_null()).then_some(wide)
}

fn check_log(rules: &mut Rules<'_>, table: &str, id: &str, statements: &[&Value]) {
    let (service, harmless) = match table {
        BODIES => ("s3:", HARMLESS_TO_BODIES),
        _ => ("dynamodb:", HARMLESS),
    };
    let arn = rules.source.arn(table).unwrap_or_default();
    let may_archive = rules.kind(id) == "AWS::IAM::ManagedPolicy" && table == COMMITS;
    let statements = statements.iter().filter(|it| !(may_archive && archives(id, it, &arn)));
    let statements: Vec<_> = statements.collect();
    let wide: Vec<_> = statements.iter().filter_map(|it| widen(it, &arn)).collect();
    let document = [json!({ "Version": "2012-10-17", "Statement": wide })];
    let named = statements.iter().flat_map(|it| texts(&it["Action"]));
    // `check_statement` refuses a pattern of actions.
    for action in named.filter(|it| !it.contains('*') && !has(harmless, it)) {
        let lower = action.to_lowercase();
        if !lower.starts_with(service) {
            continue;
        }
        let allowed = policy::allows(&document, &lower, &arn, &[]);
        let message = match &allowed {
            Err(error) => format!("a statement cannot be read: {error}"),
            Ok(_) => format!("rule 3: it allows {action} on {table}: delete the right"),
        };
        rules.require(matches!(allowed, Ok(false)), id, "", message);
    }
}

/// Whether a statement is that of the policy for archives. It allows updates of every attribute but
/// `at`, and the table denies them to all but one role.
fn archives(id: &str, statement: &Value, arn: &str) -> bool {
    let condition = json!({
        "Null": { "dynamodb:Attributes": "false" },
        "ForAllValues:StringEquals": { "dynamodb:Attributes": ARCHIVE_ATTRIBUTES },
    });
    let is_update = list(&statement["Action"]) == ["dynamodb:UpdateItem"];
    let is_of_log = list(&statement["Resource"]) == [arn];
    id == ARCHIVE_POLICY && is_update && is_of_log && statement["Condition"] == condition
}

/// Checks that no role of the template has the policy for archives, and that no role may archive by
/// default.
fn check_archive(rules: &mut Rules<'_>) {
    let message = format!(
        "rule 3: the template gives {ARCHIVE_POLICY} to a role: attach the policy outside the template"
    );
    for (id, properties) in rules.resources("") {
        let is_own = id == ARCHIVE_POLICY;
        let attaches = ["Groups", "Roles", "Users"].iter().any(|it| !properties[*it].is_null());
        let is_given =
            if is_own { attaches } else { names(&properties.to_string(), ARCHIVE_POLICY) };
        rules.require(!is_given, id, "", &message);
    }
    let default = &rules.json["Parameters"]["ArchiveRole"]["Default"];
    let is_empty = default.is_null() || default == "";
    let message =
        "rule 3: ArchiveRole has a Default: delete it, and set the parameter at the deployment";
    rules.require(is_empty, COMMITS, "", message);
}

/// Checks that a table of the log denies all changes. DynamoDB refuses a policy of a table that has
/// an unknown action.
fn check_denials(rules: &mut Rules<'_>, table: &str) {
    let of_archives =
        json!({ "StringNotEquals": { "aws:PrincipalArn": { "Ref": "ArchiveRole" } } });
    let is_for_all = |it: &&Value| {
        let is_for_all = it["Principal"] == "*" && it["Resource"] == "*";
        let is_archive = list(&it["Action"]) == ["dynamodb:UpdateItem"] && table == COMMITS;
        let is_always = it["Condition"].is_null() || is_archive && it["Condition"] == of_archives;
        is_for_all && it["Effect"] == "Deny" && is_always
    };
    let statements = list(rules.property(table, OF_TABLE)).into_iter().filter(is_for_all);
    let denied: BTreeSet<_> = statements.flat_map(|it| texts(&it["Action"])).collect();
    let keeps_times = json!({
        "ForAnyValue:StringNotEquals": { "dynamodb:Attributes": ARCHIVE_ATTRIBUTES },
    });
    let policy = list(rules.property(table, OF_TABLE));
    let has_condition = |condition: &Value| policy.iter().any(|it| it["Condition"] == *condition);
    let message = "rule 3: its policy lets the role that archives change every attribute: add the statement CommitsKeepTheirTimes";
    rules.require(
        !has_condition(&of_archives) || has_condition(&keeps_times),
        table,
        OF_TABLE,
        message,
    );
    for action in CHANGES.split(' ').chain(denied.iter().copied()) {
        let message = format!("rule 3: its policy does not deny {action}: add the action");
        rules.require(denied.contains(action), table, OF_TABLE, message);
        let message =
            format!("its policy denies {action}, which changes no item: delete the action");
        rules.require(has(CHANGES, action), table, OF_TABLE, message);
    }
}

/// Checks that the policy of the bucket of body objects denies to delete an object, to overwrite one,
/// and requests without TLS.
fn check_bucket(rules: &mut Rules<'_>) {
    let guards_bucket =
        |(_, policy): &(&str, &Value)| logical_id(&policy["Bucket"]) == Some(BODIES);
    let policy = rules.resources("AWS::S3::BucketPolicy").find(guards_bucket);
    let (id, statements) = policy.map_or((BODIES, Vec::new()), |(id, policy)| {
        (id, list(&policy["PolicyDocument"]["Statement"]))
    });
    let objects = json!({ "Fn::Sub": format!("${{{BODIES}.Arn}}/*") });
    let is_bucket = |resource: &&Value| logical_id(resource) == Some(BODIES);
    for (actions, includes_bucket, condition) in [
        (&["s3:DeleteObject", "s3:DeleteObjectVersion"][..], false, Value::Null),
        (&["s3:PutObject"], false, json!({ "Null": { "s3:if-none-match": "true" } })),
        (&["s3:*"], true, json!({ "Bool": { "aws:SecureTransport": "false" } })),
    ] {
        let is_denial = |it: &&Value, action: &str| {
            it["Effect"] == "Deny"
                && it["Principal"] == "*"
                && it["Condition"] == condition
                && texts(&it["Action"]).any(|denied| denied == action)
                && list(&it["Resource"]).contains(&&objects)
                && (!includes_bucket || list(&it["Resource"]).iter().any(is_bucket))
        };
        for action in actions {
            let is_denied = statements.iter().any(|it| is_denial(it, action));
            let condition =
                if condition.is_null() { String::new() } else { format!(" if {condition}") };
            let message = format!(
                "rule 3: the policy of {BODIES} does not deny {action}{condition} to all: add the statement"
            );
            rules.require(is_denied, id, "PolicyDocument", message);
        }
    }
    rules.expect_private(BODIES);
}

/// Checks that each function has its own role, and that no policy is outside the template.
fn check_roles(rules: &mut Rules<'_>) {
    let mut roles = BTreeMap::new();
    for (id, function) in rules.functions() {
        let role = logical_id(&function["Role"]).unwrap_or_default();
        let message = "it has no role of the template: write Role: !GetAtt <name>Role.Arn";
        rules.require(rules.kind(role) == "AWS::IAM::Role", id, "Role", message);
        let other = roles.insert(role, id).unwrap_or_default();
        let message = format!("it and {other} share the role {role}: write one for each");
        rules.require(other.is_empty() || role.is_empty(), id, "Role", message);
    }
    for (id, properties) in rules.resources("") {
        let kind = rules.kind(id);
        // SAM writes the role of CodeDeploy.
        let is_known = |it: &&Value| {
            !it["Ref"].is_null() || it.to_string().contains("AWSCodeDeployRoleForLambda")
        };
        rules.require(list(&properties["ManagedPolicyArns"]).iter().all(is_known), id, "ManagedPolicyArns", "it has a managed policy whose actions are not in the template: write an AWS::IAM::ManagedPolicy");
        let by_sam = !properties["Policies"].is_null() && kind.starts_with("AWS::Serverless::")
            || kind == "AWS::Serverless::Connector"
            || !rules.json["Resources"][id]["Connectors"].is_null();
        let message = "SAM would write or ignore its policies: write an AWS::IAM::RolePolicy";
        rules.require(!by_sam, id, "Policies", message);
        // The local stack reads the policies that a role names, and those of this type.
        let role = logical_id(&properties["RoleName"]).unwrap_or_default();
        let is_read = match kind {
            "AWS::IAM::RolePolicy" => rules.kind(role) == "AWS::IAM::Role",
            _ => !kind.starts_with("AWS::IAM::") || properties["Roles"].is_null(),
        };
        rules.require(is_read, id, "", "the local stack does not read it: write an AWS::IAM::RolePolicy with RoleName: !Ref <a role>");
    }
}

/// Checks the policies of resources. Tables allow nothing. Others allow nothing to everyone, or to
/// all that a service does for other accounts.
fn check_resources(rules: &mut Rules<'_>) {
    for (id, _) in rules.resources("AWS::DynamoDB::Table") {
        let allows_some = list(rules.property(id, OF_TABLE)).into_iter().any(allows);
        let message = "its policy allows actions: write them into the roles";
        rules.require(!allows_some, id, OF_TABLE, message);
    }
    for [kind, path] in OF_RESOURCES {
        for (id, properties) in rules.resources(kind) {
            let document = &properties[path];
            let statements = [list(document), list(&document["Statement"])].concat();
            for statement in statements.into_iter().filter(|it| allows(it)) {
                let principal = &statement["Principal"];
                let is_open = texts(principal).chain(texts(&principal["AWS"])).any(|it| it == "*")
                    || !principal["Service"].is_null() && kind != "AWS::IAM::Role";
                rules.require(!is_open || !statement["Condition"].is_null(), id, path, "a statement allows callers of any account: add a condition, such as aws:SourceArn");
            }
        }
    }
}
