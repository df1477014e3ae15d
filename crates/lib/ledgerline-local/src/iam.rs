//! The permissions of functions and operators, evaluated as IAM does. Each function and each policy
//! of operators has an access key, by which a service identifies the caller. The stack denies a
//! request, in the words of AWS, if no policy of the caller allows it or a table's policy denies it.
//! So a missing permission shows here, and not at the first deployment.
//!
//! `iam-rs` evaluates the policies; this module finds the actions and resources of a request.
//! docs/architecture.md, "Roles on a laptop", lists the limits of this emulation.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use anyhow::{Context as _, Result};
use axum::http::{HeaderMap, StatusCode};
use iam_rs::{
    Arn, Context, ContextValue, Decision, IAMRequest, PolicyEvaluator, Principal, PrincipalId,
};
use serde_json::{Map, Value, json};

use ledgerline_sam::{
    policy::evaluator,
    template::{ACCOUNT, REGION, Template},
};

use crate::{
    outages::{Failing, Outages},
    trace_log::TraceLog,
};

/// The callers and their permissions.
#[derive(Debug)]
pub struct Iam {
    /// The functions and the operators, by access key.
    callers: HashMap<String, Caller>,
    /// The tables, by name.
    tables: HashMap<String, Guarded>,
    /// The policies of buckets, by name.
    buckets: HashMap<String, ResourcePolicy>,
    /// The cached decisions. A decision depends only on the caller and the act.
    decided: Mutex<Decided>,
    pub(crate) outages: Arc<Outages>,
    hops: TraceLog,
}

/// Decisions by access key and act. Where no statement has conditions, the act is stored without
/// the values that conditions test.
type Decided = HashMap<(String, Act), Option<Because>>;

/// The words of an expression of DynamoDB that name no attribute.
const WORDS: [&str; 17] = [
    "SET",
    "REMOVE",
    "ADD",
    "DELETE",
    "AND",
    "OR",
    "NOT",
    "IN",
    "BETWEEN",
    "attribute_exists",
    "attribute_not_exists",
    "attribute_type",
    "begins_with",
    "contains",
    "size",
    "if_not_exists",
    "list_append",
];

/// The maximum number of cached decisions. Acts on single items contain the keys of the items, so
/// the number of different acts has no limit.
const MAX_DECIDED: usize = 10_000;

#[derive(Debug)]
struct Caller {
    /// The ARN of the session.
    arn: String,
    role: PolicyEvaluator,
    /// Whether a statement of the role has conditions.
    conditions: bool,
    is_function: bool,
}

impl Caller {
    fn new(arn: String, policies: &[Value], is_function: bool) -> Result<Self> {
        let role = evaluator(policies).with_context(|| format!("the policies of {arn}"))?;
        Ok(Self { arn, role, conditions: policies.iter().any(has_conditions), is_function })
    }
}

#[derive(Debug)]
struct Guarded {
    /// The name of the partition key.
    partition: String,
    policy: Option<ResourcePolicy>,
}

/// The policy of a table or a bucket.
#[derive(Debug)]
struct ResourcePolicy {
    policy: PolicyEvaluator,
    /// Whether a statement of the policy has conditions.
    conditions: bool,
}

impl ResourcePolicy {
    /// Reads the policy of the resource with this name, if it has one.
    fn read(name: &str, policy: Option<&Value>) -> Result<Option<Self>> {
        let Some(policy) = policy else { return Ok(None) };
        let conditions = has_conditions(policy);
        let policy = evaluator(std::slice::from_ref(policy));
        let policy = policy.with_context(|| format!("the policy of {name}"))?;
        Ok(Some(Self { policy, conditions }))
    }
}

/// One action on one resource that a request needs.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Act {
    action: String,
    resource: String,
    /// The values that conditions test.
    context: Vec<(&'static str, Vec<String>)>,
}

/// The reason of a denial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Because {
    /// The role does not allow the action.
    NotAllowed,
    /// The role denies the action.
    DeniedByRole,
    /// The policy of the table or bucket denies the action.
    Denied,
}

impl Iam {
    /// Reads the roles of a template's functions and the policies of its tables.
    pub(crate) fn new(template: &Template, hops: TraceLog) -> Result<Self> {
        let mut callers = HashMap::new();
        for function in &template.functions {
            let Some(role) = &function.role else { continue };
            let arn = format!("arn:aws:sts::{ACCOUNT}:assumed-role/{}/{}", role.name, function.id);
            callers.insert(access_key(&function.id), Caller::new(arn, &role.policies, true)?);
        }
        let mut policies = Vec::new();
        for (id, policy) in &template.operators {
            policies.push(policy.clone());
            let arn = format!("arn:aws:sts::{ACCOUNT}:assumed-role/{id}/operator");
            callers.insert(access_key(id), Caller::new(arn, &policies, false)?);
        }
        let mut tables = HashMap::new();
        for table in &template.tables {
            let keys = table.create["KeySchema"].as_array().into_iter().flatten();
            let partition = keys.into_iter().find(|key| key["KeyType"] == "HASH");
            let partition =
                partition.and_then(|key| key["AttributeName"].as_str()).unwrap_or_default();
            let policy = ResourcePolicy::read(&table.name, table.policy.as_ref())?;
            tables.insert(table.name.clone(), Guarded { partition: partition.to_owned(), policy });
        }
        let mut buckets = HashMap::new();
        for bucket in &template.buckets {
            let policy = ResourcePolicy::read(&bucket.name, bucket.policy.as_ref())?;
            buckets.extend(policy.map(|policy| (bucket.name.clone(), policy)));
        }
        let decided = Mutex::default();
        Ok(Self { callers, tables, buckets, decided, outages: Arc::default(), hops })
    }

    /// Creates the permissions of functions without a template. The callers have these access keys
    /// and the policies of their roles; the tables have these names and partition keys.
    ///
    /// # Errors
    /// When a policy cannot be read.
    pub fn from_policies(
        roles: BTreeMap<String, Vec<Value>>,
        tables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self> {
        let caller = |(key, policies): (String, Vec<Value>)| {
            let arn = format!("arn:aws:sts::{ACCOUNT}:assumed-role/{key}/{key}");
            let caller = Caller::new(arn, &policies, true)?;
            Ok::<_, anyhow::Error>((key, caller))
        };
        let guarded = |(name, partition)| (name, Guarded { partition, policy: None });
        Ok(Self {
            callers: roles.into_iter().map(caller).collect::<Result<_>>()?,
            tables: tables.into_iter().map(guarded).collect(),
            buckets: HashMap::new(),
            decided: Mutex::default(),
            outages: Arc::default(),
            hops: TraceLog { quiet: true },
        })
    }

    /// Returns the reason why the caller with this access key may not send a request, in the words
    /// of AWS; `None` if the caller may.
    #[must_use]
    pub fn denial(&self, key: &str, target: &str, request: &Value) -> Option<String> {
        self.denial_of_acts(key, self.required_permissions(target, request))
    }

    /// Returns the reason why the caller with this access key may not perform an action on a bucket
    /// or an object; `None` if the caller may. `if_none_match` is the condition of a PUT.
    pub(crate) fn denial_of_object(
        &self,
        key: &str,
        action: &str,
        resource: &str,
        if_none_match: Option<&str>,
    ) -> Option<String> {
        let mut act = act(action, resource.to_owned());
        act.context.push(("s3:ResourceAccount", vec![ACCOUNT.to_owned()]));
        act.context.extend(if_none_match.map(|value| ("s3:if-none-match", vec![value.to_owned()])));
        let message = self.denial_of_acts(key, vec![act])?;
        self.hops.always("denied", &message);
        Some(message)
    }

    /// Returns the answer to a request of a function to a bucket that has an outage.
    pub(crate) fn outage_of_bucket(&self, key: &str, arn: &str) -> Option<Failing> {
        let caller = self.callers.get(key)?;
        self.outages.failure(arn).filter(|_| caller.is_function)
    }

    fn denial_of_acts(&self, key: &str, acts: Vec<Act>) -> Option<String> {
        // Every other client has the credentials of an administrator.
        let caller = self.callers.get(key);
        let denied = acts.into_iter().find_map(|act| Some((self.decide(key, caller, &act)?, act)));
        let (because, Act { action, resource, .. }) = denied?;
        let arn = caller.map_or_else(
            || format!("arn:aws:iam::{ACCOUNT}:user/{key}"),
            |caller| caller.arn.clone(),
        );
        let because = match because {
            Because::NotAllowed => {
                format!("because no identity-based policy allows the {action} action")
            }
            Because::DeniedByRole => "with an explicit deny in an identity-based policy".to_owned(),
            Because::Denied => "with an explicit deny in a resource-based policy".to_owned(),
        };
        Some(format!(
            "User: {arn} is not authorized to perform: {action} on resource: {resource} {because}"
        ))
    }

    /// Returns the answer to a request that its caller may not send, or that fails in an outage.
    /// `target` names the operation, as the JSON protocols of AWS do.
    pub(crate) fn refusal(
        &self,
        headers: &HeaderMap,
        target: &str,
        body: &[u8],
    ) -> Option<(StatusCode, Value)> {
        let key = caller(headers)?;
        let is_function = self.callers.get(key).is_some_and(|caller| caller.is_function);
        let request: Value = serde_json::from_slice(body).ok()?;
        let acts = self.required_permissions(target, &request);
        if is_function
            && let Some((act, answer)) =
                acts.iter().find_map(|act| Some((act, self.outages.failure(&act.resource)?)))
        {
            return Some(self.outage_error(act, answer));
        }
        let message = self.denial_of_acts(key, acts)?;
        self.hops.always("denied", &message);
        let denied = json!({ "__type": "com.amazon.coral.service#AccessDeniedException", "Message": message, "message": message });
        Some((StatusCode::BAD_REQUEST, denied))
    }

    /// Returns the answer of a resource that has an outage.
    fn outage_error(
        &self,
        Act { action, resource, .. }: &Act,
        answer: Failing,
    ) -> (StatusCode, Value) {
        let message = format!("{action} on {resource} fails: an outage on request");
        if answer == Failing::Failed {
            let failed = json!({ "__type": "InternalServerError", "message": message });
            return (StatusCode::INTERNAL_SERVER_ERROR, failed);
        }
        // AWS counts each throttled request as a metric, but the caller may retry without a log
        // line.
        self.hops.always("throttled", &format!("{action} on {resource}"));
        if action.starts_with("lambda:") {
            let throttled = json!({ "Type": "User", "message": message });
            return (StatusCode::TOO_MANY_REQUESTS, throttled);
        }
        (StatusCode::BAD_REQUEST, json!({ "__type": "ThrottlingException", "message": message }))
    }

    /// Returns the reason why the caller may not perform the act; `None` if the caller may.
    fn decide(&self, key: &str, caller: Option<&Caller>, act: &Act) -> Option<Because> {
        let depends = caller.is_some_and(|caller| caller.conditions)
            || self.policy_of(act).is_some_and(|policy| policy.conditions);
        let context = if depends { act.context.clone() } else { Vec::new() };
        let asked = (
            key.to_owned(),
            Act { action: act.action.clone(), resource: act.resource.clone(), context },
        );
        if let Some(decided) = self.decisions().get(&asked) {
            return *decided;
        }
        let because = self.evaluate(key, caller, act);
        let mut decided = self.decisions();
        if decided.len() >= MAX_DECIDED {
            decided.clear();
        }
        decided.insert(asked, because);
        because
    }

    fn decisions(&self) -> MutexGuard<'_, Decided> {
        self.decided.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn evaluate(&self, key: &str, caller: Option<&Caller>, act: &Act) -> Option<Because> {
        let arn = caller.map_or_else(
            || format!("arn:aws:iam::{ACCOUNT}:user/{key}"),
            |caller| caller.arn.clone(),
        );
        // An action on a resource that cannot be parsed is denied to functions.
        let Ok(resource) = Arn::parse(&act.resource) else {
            return caller.map(|_| Because::NotAllowed);
        };
        let mut context = Context::new();
        let principal = ContextValue::String(principal_arn(&arn));
        context.insert("aws:PrincipalArn".to_owned(), principal);
        for (key, values) in &act.context {
            context.insert((*key).to_owned(), ContextValue::StringList(values.clone()));
            if let [value] = values.as_slice() {
                context.insert((*key).to_owned(), ContextValue::String(value.clone()));
            }
        }
        let principal = Principal::Aws(PrincipalId::String(arn));
        let request =
            IAMRequest::new_with_context(principal, act.action.clone(), resource, context);
        let decision =
            |policies: &PolicyEvaluator| policies.evaluate(&request).map(|result| result.decision);
        let policy = self.policy_of(act);
        if policy.is_some_and(|policy| decision(&policy.policy) == Ok(Decision::Deny)) {
            return Some(Because::Denied);
        }
        match caller.map(|caller| decision(&caller.role)) {
            None | Some(Ok(Decision::Allow)) => None,
            Some(Ok(Decision::Deny)) => Some(Because::DeniedByRole),
            Some(Ok(_) | Err(_)) => Some(Because::NotAllowed),
        }
    }

    /// Returns the table of an act, if the resource is a table or an index.
    fn table_of(&self, act: &Act) -> Option<&Guarded> {
        let path = act.resource.split(":table/").nth(1)?;
        self.tables.get(path.split('/').next()?)
    }

    /// Returns the policy of the table or bucket of an act.
    fn policy_of(&self, act: &Act) -> Option<&ResourcePolicy> {
        if let Some(path) = act.resource.strip_prefix("arn:aws:s3:::") {
            return self.buckets.get(path.split('/').next()?);
        }
        self.table_of(act)?.policy.as_ref()
    }

    // --- The actions of requests -----------------------------------------------------------------

    fn required_permissions(&self, target: &str, request: &Value) -> Vec<Act> {
        match target.split_once('.') {
            Some(("DynamoDB_20120810", operation)) => self.dynamodb_permissions(operation, request),
            Some(("AmazonSQS", operation)) => sqs(operation, request),
            Some(("AWSEvents", "PutEvents")) => {
                let entries = request["Entries"].as_array().into_iter().flatten();
                let buses: BTreeSet<_> = entries
                    .map(|entry| entry["EventBusName"].as_str().unwrap_or("default"))
                    .collect();
                let arn = |bus: &str| format!("arn:aws:events:{REGION}:{ACCOUNT}:event-bus/{bus}");
                buses.into_iter().map(|bus| act("events:PutEvents", arn(bus))).collect()
            }
            Some(("AWSEvents", "ListTargetsByRule")) => {
                let text = |name: &str| request[name].as_str().unwrap_or_default();
                let rule = match text("EventBusName") {
                    "" | "default" => text("Rule").to_owned(),
                    bus => format!("{bus}/{}", text("Rule")),
                };
                let arn = format!("arn:aws:events:{REGION}:{ACCOUNT}:rule/{rule}");
                vec![act("events:ListTargetsByRule", arn)]
            }
            Some(("Lambda", "Invoke")) => {
                vec![act(
                    "lambda:InvokeFunction",
                    request["FunctionName"].as_str().unwrap_or_default().to_owned(),
                )]
            }
            Some(("SES", "SendEmail")) => {
                let from = request["FromEmailAddress"].as_str().unwrap_or_default();
                // The sender is `Name <address>`, or the address alone.
                let address = from
                    .rsplit_once('<')
                    .map_or(from, |(_, address)| address.trim_end_matches('>'));
                let resource = format!("arn:aws:ses:{REGION}:{ACCOUNT}:identity/{address}");
                let context = vec![("ses:FromAddress", vec![address.to_owned()])];
                vec![Act { action: "ses:SendEmail".into(), resource, context }]
            }
            Some(("CloudFormation", operation)) => {
                let stack = request["StackName"].as_str().unwrap_or_default();
                let arn = format!("arn:aws:cloudformation:{REGION}:{ACCOUNT}:stack/{stack}/local");
                vec![act(&format!("cloudformation:{operation}"), arn)]
            }
            Some(("Logs_20140328", operation)) => {
                let group = request["logGroupName"].as_str().unwrap_or_default();
                let arn = format!("arn:aws:logs:{REGION}:{ACCOUNT}:log-group:{group}");
                vec![act(&format!("logs:{operation}"), arn)]
            }
            // Other operations, such as lists, name no resource. Functions use none of them.
            Some((service, operation)) => {
                let prefix = match service {
                    "AWSEvents" => "events",
                    "Lambda" => "lambda",
                    "SES" => "ses",
                    _ => return Vec::new(),
                };
                let all = format!("arn:aws:{prefix}:{REGION}:{ACCOUNT}:*");
                vec![act(&format!("{prefix}:{operation}"), all)]
            }
            None => Vec::new(),
        }
    }

    fn dynamodb_permissions(&self, operation: &str, request: &Value) -> Vec<Act> {
        let table = &request["TableName"];
        let action = format!("dynamodb:{operation}");
        let act = |index, keys| vec![self.table_act(&action, table, index, keys)];
        match operation {
            "GetItem" | "DeleteItem" => act(None, self.key_of(table, &request["Key"])),
            "UpdateItem" => vec![self.update_act(request)],
            "PutItem" => act(None, self.key_of(table, &request["Item"])),
            "Query" => act(request["IndexName"].as_str(), self.queried_keys(table, request)),
            "Scan" => act(request["IndexName"].as_str(), None),
            "BatchGetItem" | "BatchWriteItem" => {
                let tables = request["RequestItems"].as_object().into_iter().flatten();
                let on_table = |(table, requests): (&String, &Value)| {
                    let table = json!(table);
                    let gets = requests["Keys"].as_array().into_iter().flatten();
                    let writes = requests.as_array().into_iter().flatten().map(|write| {
                        let key = &write["DeleteRequest"]["Key"];
                        if key.is_null() { &write["PutRequest"]["Item"] } else { key }
                    });
                    let keys: Vec<_> = gets
                        .chain(writes)
                        .filter_map(|key| self.key_of(&table, key))
                        .flatten()
                        .collect();
                    self.table_act(&action, &table, None, Some(keys))
                };
                tables.map(on_table).collect()
            }
            "TransactGetItems" | "TransactWriteItems" => {
                let items = request["TransactItems"].as_array().into_iter().flatten();
                items
                    .filter_map(Value::as_object)
                    .flatten()
                    .filter_map(|(kind, item)| self.part(kind, item))
                    .collect()
            }
            "ExecuteStatement" => {
                self.statement(request).unwrap_or_else(|| self.unparsed_acts(request))
            }
            "BatchExecuteStatement" | "ExecuteTransaction" => {
                let list = if operation == "ExecuteTransaction" {
                    "TransactStatements"
                } else {
                    "Statements"
                };
                let statements = request[list].as_array().into_iter().flatten();
                let acts = statements.map(|statement| {
                    self.statement(statement).unwrap_or_else(|| self.unparsed_acts(statement))
                });
                acts.flatten().collect()
            }
            // The other operations are about tables, not items. Functions use none of these
            // operations, and are denied each one that no role names.
            _ => act(None, None),
        }
    }

    /// Returns the act of an update, with the attributes that its key and its expressions name.
    ///
    /// Source: the developer guide of DynamoDB, "Using IAM policy conditions for fine-grained access
    /// control": `dynamodb:Attributes` has the attribute names in a request.
    fn update_act(&self, update: &Value) -> Act {
        let table = &update["TableName"];
        let mut act =
            self.table_act("dynamodb:UpdateItem", table, None, self.key_of(table, &update["Key"]));
        // The last two are older forms of the expressions.
        let fields = ["Key", "AttributeUpdates", "Expected"];
        let fields = fields.iter().filter_map(|field| update[*field].as_object()).flatten();
        let mut attributes: BTreeSet<_> = fields.map(|(name, _)| name.clone()).collect();
        for expression in ["UpdateExpression", "ConditionExpression"] {
            let text = update[expression].as_str().unwrap_or_default();
            let is_separator = |c: char| !c.is_ascii_alphanumeric() && !"_#:.".contains(c);
            for path in text.split(is_separator) {
                let name = path.split('.').next().unwrap_or_default();
                let is_word = WORDS.iter().any(|word| word.eq_ignore_ascii_case(name));
                if name.starts_with('#') {
                    let named = update["ExpressionAttributeNames"][name].as_str();
                    attributes.extend(named.map(ToOwned::to_owned));
                } else if name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
                    && !is_word
                {
                    attributes.insert(name.to_owned());
                }
            }
        }
        act.context.push(("dynamodb:Attributes", attributes.into_iter().collect()));
        act
    }

    /// Returns the act of one part of a transaction.
    fn part(&self, kind: &str, item: &Value) -> Option<Act> {
        let (action, key) = match kind {
            "Get" => ("dynamodb:GetItem", "Key"),
            "Put" => ("dynamodb:PutItem", "Item"),
            "Update" => return Some(self.update_act(item)),
            "Delete" => ("dynamodb:DeleteItem", "Key"),
            "ConditionCheck" => ("dynamodb:ConditionCheckItem", "Key"),
            _ => return None,
        };
        let table = &item["TableName"];
        Some(self.table_act(action, table, None, self.key_of(table, &item[key])))
    }

    /// Returns the acts of a PartiQL statement, such as `INSERT INTO "table" VALUE {'key': ?, …}`;
    /// `None` if the statement cannot be parsed.
    fn statement(&self, statement: &Value) -> Option<Vec<Act>> {
        let text = statement["Statement"].as_str()?;
        let mut words = text.split_whitespace();
        let (action, table) = match words.next()?.to_ascii_uppercase().as_str() {
            "INSERT" => ("dynamodb:PartiQLInsert", words.nth(1)?),
            "UPDATE" => ("dynamodb:PartiQLUpdate", words.next()?),
            "DELETE" => ("dynamodb:PartiQLDelete", words.nth(1)?),
            "SELECT" => (
                "dynamodb:PartiQLSelect",
                words.find(|word| word.eq_ignore_ascii_case("FROM")).and(words.next())?,
            ),
            _ => return None,
        };
        // The name of an index follows a dot: "table"."index".
        let mut names = table.split('.').map(|name| name.trim_matches('"'));
        let table = json!(names.next()?);
        let index = names.next();
        let guarded = self.tables.get(table.as_str()?)?;
        // The value of the partition key is the parameter whose `?` follows the key's name.
        let before = text.split_once(&format!("'{}':", guarded.partition));
        let key = before.and_then(|(before, after)| {
            let place = before.matches('?').count();
            let value =
                after.trim_start().starts_with('?').then(|| &statement["Parameters"][place])?;
            Some(vec![scalar(value)?])
        });
        Some(vec![self.table_act(action, &table, index, key)])
    }

    /// Returns the acts of a statement that cannot be parsed: every change of each table whose name
    /// the statement contains. So no spelling avoids a policy.
    fn unparsed_acts(&self, statement: &Value) -> Vec<Act> {
        let text = statement["Statement"].as_str().unwrap_or_default();
        let tables = self.tables.keys().filter(|table| text.contains(table.as_str()));
        let changes =
            ["dynamodb:PartiQLUpdate", "dynamodb:PartiQLDelete", "dynamodb:PartiQLInsert"];
        tables
            .flat_map(|table| {
                changes.map(|action| self.table_act(action, &json!(table), None, None))
            })
            .collect()
    }

    fn table_act(
        &self,
        action: &str,
        table: &Value,
        index: Option<&str>,
        keys: Option<Vec<String>>,
    ) -> Act {
        let table = table.as_str().unwrap_or_default();
        // A request may name a table by its ARN.
        let arn = if table.starts_with("arn:") {
            table.to_owned()
        } else {
            format!("arn:aws:dynamodb:{REGION}:{ACCOUNT}:table/{table}")
        };
        let resource = index.map_or_else(|| arn.clone(), |index| format!("{arn}/index/{index}"));
        let context = keys.map(|keys| ("dynamodb:LeadingKeys", keys));
        Act { action: action.to_owned(), resource, context: context.into_iter().collect() }
    }

    /// Returns the value of the partition key in a key or an item.
    fn key_of(&self, table: &Value, item: &Value) -> Option<Vec<String>> {
        let guarded = self.tables.get(table.as_str()?)?;
        Some(vec![scalar(&item[&guarded.partition])?])
    }

    /// Returns the value of the partition key in the condition of a query. An index has a partition
    /// key of its own, so any attribute counts in a query of an index.
    fn queried_keys(&self, table: &Value, request: &Value) -> Option<Vec<String>> {
        let guarded = self.tables.get(table.as_str()?)?;
        let names = request["ExpressionAttributeNames"].as_object();
        let condition = request["KeyConditionExpression"].as_str()?.replace('=', " = ");
        let words: Vec<_> =
            condition.split([' ', '(', ')']).filter(|word| !word.is_empty()).collect();
        let is_partition = |word: &str| {
            let name = names
                .and_then(|names: &Map<String, Value>| names.get(word)?.as_str())
                .unwrap_or(word);
            name == guarded.partition || request["IndexName"].is_string()
        };
        let place = words.windows(3).find(|words| words[1] == "=" && is_partition(words[0]))?;
        Some(vec![scalar(&request["ExpressionAttributeValues"][place[2]])?])
    }
}

/// Returns the value of `aws:PrincipalArn`: the role of a session, or the caller itself.
fn principal_arn(arn: &str) -> String {
    let session =
        arn.strip_prefix("arn:aws:sts::").and_then(|rest| rest.split_once(":assumed-role/"));
    match session.and_then(|(account, session)| Some((account, session.split_once('/')?.0))) {
        Some((account, role)) => format!("arn:aws:iam::{account}:role/{role}"),
        None => arn.to_owned(),
    }
}

/// Returns the access key of a function or of a policy of operators, by its logical id.
#[must_use]
pub fn access_key(id: &str) -> String {
    format!("LOCAL{id}")
}

/// Returns the access key in the signature of a request: `AWS4-HMAC-SHA256
/// Credential=KEY/date/region/service/aws4_request, …`.
pub(crate) fn caller(headers: &HeaderMap) -> Option<&str> {
    let authorization = headers.get("authorization")?.to_str().ok()?;
    authorization.split_once("Credential=")?.1.split('/').next()
}

fn act(action: &str, resource: String) -> Act {
    Act { action: action.to_owned(), resource, context: Vec::new() }
}

fn sqs(operation: &str, request: &Value) -> Vec<Act> {
    let action = match operation {
        "SendMessage" | "SendMessageBatch" => "sqs:SendMessage",
        "ReceiveMessage" => "sqs:ReceiveMessage",
        "DeleteMessage" | "DeleteMessageBatch" => "sqs:DeleteMessage",
        "ChangeMessageVisibility" | "ChangeMessageVisibilityBatch" => "sqs:ChangeMessageVisibility",
        "GetQueueAttributes" => "sqs:GetQueueAttributes",
        "PurgeQueue" => "sqs:PurgeQueue",
        // Functions use no other operation, and are denied each one that no role names.
        other => &format!("sqs:{other}"),
    };
    // A list names no queue.
    let queue = request["QueueUrl"].as_str().or_else(|| request["QueueName"].as_str());
    let queue = queue.and_then(|url| url.rsplit('/').next()).unwrap_or("*");
    vec![act(action, format!("arn:aws:sqs:{REGION}:{ACCOUNT}:{queue}"))]
}

/// Returns a text or a number in DynamoDB's JSON.
fn scalar(value: &Value) -> Option<String> {
    ["S", "N"].iter().find_map(|kind| value[kind].as_str()).map(ToOwned::to_owned)
}

fn has_conditions(policy: &Value) -> bool {
    policy.to_string().contains("\"Condition\"")
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, path::Path, sync::LazyLock};

    use super::*;
    use ledgerline_sam::template::Source;

    const TEMPLATE: &str = r#"
Parameters:
  Sender: { Type: String, Default: depot@example.com }
Resources:
  LevelsTable:
    Type: AWS::DynamoDB::Table
    Properties:
      AttributeDefinitions: [{ AttributeName: tankId, AttributeType: S }, { AttributeName: site, AttributeType: S }]
      KeySchema: [{ AttributeName: tankId, KeyType: HASH }]
      GlobalSecondaryIndexes: [{ IndexName: bySite, KeySchema: [{ AttributeName: site, KeyType: HASH }], Projection: { ProjectionType: ALL } }]
  LogTable:
    Type: AWS::DynamoDB::Table
    Properties:
      AttributeDefinitions: [{ AttributeName: stream, AttributeType: S }]
      KeySchema: [{ AttributeName: stream, KeyType: HASH }]
      ResourcePolicy:
        PolicyDocument:
          Version: "2012-10-17"
          Statement: [{ Effect: Deny, Principal: "*", Action: [dynamodb:PutItem, dynamodb:PartiQLDelete], Resource: "*" }]
  FillsQueue: { Type: AWS::SQS::Queue, Properties: { FifoQueue: true } }
  Bus: { Type: AWS::Events::EventBus, Properties: { Name: events } }
  Shared:
    Type: AWS::IAM::ManagedPolicy
    Properties:
      PolicyDocument: { Version: "2012-10-17", Statement: [{ Effect: Allow, Action: events:PutEvents, Resource: !GetAtt Bus.Arn }] }
  TankRole:
    Type: AWS::IAM::Role
    Properties:
      ManagedPolicyArns: [!Ref Shared]
      Policies:
        - PolicyName: tank
          PolicyDocument:
            Version: "2012-10-17"
            Statement:
              - { Effect: Allow, Action: [dynamodb:GetItem, dynamodb:PutItem], Resource: !GetAtt LevelsTable.Arn }
              - { Effect: Allow, Action: dynamodb:Query, Resource: !Sub "${LevelsTable.Arn}/index/bySite" }
              - { Effect: Allow, Action: sqs:SendMessage, Resource: !GetAtt FillsQueue.Arn }
              - { Effect: Allow, Action: lambda:InvokeFunction, Resource: !Sub "${FencedFunction.Arn}:live" }
              - { Effect: Allow, Action: ["dynamodb:partiqlinsert", "dynamodb:PutItem"], Resource: !GetAtt LogTable.Arn }
  TankFunction:
    Type: AWS::Serverless::Function
    Metadata: { BuildProperties: { Binary: tank } }
    Properties: { Role: !GetAtt TankRole.Arn }
  FencedRole:
    Type: AWS::IAM::Role
    Properties:
      Policies:
        - PolicyName: fenced
          PolicyDocument:
            Version: "2012-10-17"
            Statement:
              - Effect: Allow
                Action: [dynamodb:PartiQLInsert, dynamodb:Query, dynamodb:GetItem, dynamodb:BatchGetItem]
                Resource: !GetAtt LogTable.Arn
                Condition: { "Null": { dynamodb:LeadingKeys: "false" }, "ForAllValues:StringLike": { dynamodb:LeadingKeys: ["tank-*"] } }
              - Effect: Allow
                Action: ses:SendEmail
                Resource: !Sub arn:${AWS::Partition}:ses:${AWS::Region}:${AWS::AccountId}:identity/*
                Condition: { StringEquals: { ses:FromAddress: !Ref Sender } }
              - { Effect: Deny, Action: dynamodb:Scan, Resource: "*" }
  FencedFunction:
    Type: AWS::Serverless::Function
    Metadata: { BuildProperties: { Binary: fenced } }
    Properties: { Role: !GetAtt FencedRole.Arn }
"#;

    /// The permissions that all tests share, so that a cached decision must be right for the next
    /// request.
    static IAM: LazyLock<Iam> = LazyLock::new(|| {
        let source = Source::parse(TEMPLATE, Path::new("template.yaml")).unwrap();
        let template = source.template(&BTreeMap::new(), "http://127.0.0.1:1").unwrap();
        Iam::new(&template, TraceLog { quiet: true }).unwrap()
    });

    fn denial(caller: &str, target: &str, request: Value) -> Option<String> {
        let mut headers = HeaderMap::new();
        let credential = format!(
            "AWS4-HMAC-SHA256 Credential={caller}/20261123/us-east-1/dynamodb/aws4_request"
        );
        headers.insert("authorization", credential.parse().unwrap());
        let (_, refusal) = IAM.refusal(&headers, target, request.to_string().as_bytes())?;
        Some(refusal["Message"].as_str().unwrap().to_owned())
    }

    fn dynamodb(caller: &str, operation: &str, request: Value) -> Option<String> {
        denial(caller, &format!("DynamoDB_20120810.{operation}"), request)
    }

    const TANK: &str = "LOCALTankFunction";
    const FENCED: &str = "LOCALFencedFunction";
    const LEVELS: &str = "ledgerline-LevelsTable";
    const LOG: &str = "ledgerline-LogTable";

    #[test]
    fn an_action_that_no_policy_allows_is_denied_in_the_words_of_aws() {
        let key = json!({ "tankId": { "S": "north" } });
        assert_eq!(dynamodb(TANK, "GetItem", json!({ "TableName": LEVELS, "Key": key })), None);
        assert_eq!(
            dynamodb(TANK, "DeleteItem", json!({ "TableName": LEVELS, "Key": key })).unwrap(),
            "User: arn:aws:sts::000000000000:assumed-role/ledgerline-TankRole/TankFunction is not authorized to perform: \
             dynamodb:DeleteItem on resource: arn:aws:dynamodb:us-east-1:000000000000:table/ledgerline-LevelsTable because no \
             identity-based policy allows the dynamodb:DeleteItem action"
        );
        // An index is not the same resource as its table.
        let query = json!({ "TableName": LEVELS, "IndexName": "bySite" });
        assert_eq!(dynamodb(TANK, "Query", query), None);
        assert!(dynamodb(TANK, "Query", json!({ "TableName": LEVELS })).is_some());
    }

    #[test]
    fn each_part_of_a_transaction_and_of_a_batch_needs_its_own_permission() {
        let put = json!({ "Put": { "TableName": LEVELS, "Item": {} } });
        let delete = json!({ "Delete": { "TableName": LEVELS, "Key": {} } });
        assert_eq!(dynamodb(TANK, "TransactWriteItems", json!({ "TransactItems": [put] })), None);
        let denied =
            dynamodb(TANK, "TransactWriteItems", json!({ "TransactItems": [put, delete] }))
                .unwrap();
        assert!(denied.contains("dynamodb:DeleteItem"), "{denied}");
        let denied =
            dynamodb(TANK, "BatchWriteItem", json!({ "RequestItems": { LEVELS: [put] } })).unwrap();
        assert!(denied.contains("dynamodb:BatchWriteItem"), "{denied}");
        let statement =
            |text: &str| json!({ "Statement": format!("{text} \"{LOG}\" VALUE {{'stream': ?}}") });
        assert_eq!(
            dynamodb(TANK, "ExecuteStatement", statement("INSERT INTO")),
            None,
            "IAM ignores case"
        );
        let both = json!({ "TransactStatements": [statement("INSERT INTO"), { "Statement": format!("UPDATE \"{LOG}\" SET x = 1") }] });
        assert!(
            dynamodb(TANK, "ExecuteTransaction", both).unwrap().contains("dynamodb:PartiQLUpdate")
        );
    }

    /// Rule 3: the policy of a table applies to every caller.
    #[test]
    fn the_policy_of_a_table_denies_actions_to_every_caller() {
        for caller in [TANK, "AKIASOMEBODY"] {
            let denied =
                dynamodb(caller, "PutItem", json!({ "TableName": LOG, "Item": {} })).unwrap();
            assert!(
                denied.ends_with("with an explicit deny in a resource-based policy"),
                "{denied}"
            );
        }
        assert_eq!(
            dynamodb("AKIASOMEBODY", "GetItem", json!({ "TableName": LOG, "Key": {} })),
            None
        );
    }

    /// A statement that cannot be parsed must not bypass the policy of a table.
    #[test]
    fn a_statement_that_cannot_be_parsed_is_denied_like_a_change() {
        for text in [format!("UPDATE \"{LOG}\"SET x = 1"), format!("MERGE INTO \"{LOG}\"")] {
            let denied = dynamodb("AKIASOMEBODY", "ExecuteStatement", json!({ "Statement": text }));
            assert!(
                denied.unwrap().ends_with("with an explicit deny in a resource-based policy"),
                "{text}"
            );
        }
    }

    #[test]
    fn operations_that_no_role_names_are_denied_to_functions() {
        for (target, request) in [
            ("DynamoDB_20120810.DeleteTable", json!({ "TableName": LEVELS })),
            (
                "AmazonSQS.SetQueueAttributes",
                json!({ "QueueUrl": "http://127.0.0.1:1/0/ledgerline-FillsQueue.fifo" }),
            ),
            ("AWSEvents.PutRule", json!({})),
        ] {
            assert!(denial(TANK, target, request.clone()).is_some(), "{target}");
            assert_eq!(denial("AKIASOMEBODY", target, request), None, "{target}");
        }
    }

    #[test]
    fn an_action_that_a_role_denies_is_reported_as_an_explicit_deny() {
        let denied = dynamodb(FENCED, "Scan", json!({ "TableName": LEVELS })).unwrap();
        assert!(denied.ends_with("with an explicit deny in an identity-based policy"), "{denied}");
    }

    #[test]
    fn queues_buses_functions_and_mails_are_resources_too() {
        let url =
            |queue: &str| json!({ "QueueUrl": format!("http://127.0.0.1:1/000000000000/{queue}") });
        assert_eq!(
            denial(TANK, "AmazonSQS.SendMessageBatch", url("ledgerline-FillsQueue.fifo")),
            None
        );
        assert!(denial(TANK, "AmazonSQS.SendMessage", url("ledgerline-OtherQueue.fifo")).is_some());
        let put = |bus: &str| json!({ "Entries": [{ "EventBusName": bus }] });
        assert_eq!(
            denial(TANK, "AWSEvents.PutEvents", put("events")),
            None,
            "by the managed policy"
        );
        assert!(denial(FENCED, "AWSEvents.PutEvents", put("events")).is_some());
        let invoke = |function: &str| {
            let arn = format!("arn:aws:lambda:{REGION}:{ACCOUNT}:function:ledgerline-{function}");
            json!({ "FunctionName": arn })
        };
        assert_eq!(denial(TANK, "Lambda.Invoke", invoke("FencedFunction:live")), None);
        for other in ["FencedFunction", "FencedFunction:other", "TankFunction:live"] {
            assert!(denial(TANK, "Lambda.Invoke", invoke(other)).is_some(), "{other}");
        }
        assert!(denial(FENCED, "Lambda.Invoke", invoke("FencedFunction:live")).is_some());
        let from = |address: &str| json!({ "FromEmailAddress": address });
        assert_eq!(denial(FENCED, "SES.SendEmail", from("Depot <depot@example.com>")), None);
        assert!(denial(FENCED, "SES.SendEmail", from("other@example.com")).is_some());
    }

    #[test]
    fn a_condition_may_limit_a_role_to_the_keys_of_some_items() {
        let get = |stream: &str| json!({ "TableName": LOG, "Key": { "stream": { "S": stream } } });
        let query = |stream: &str| {
            json!({
                "TableName": LOG,
                "KeyConditionExpression": "#s = :s AND #v >= :v",
                "ExpressionAttributeNames": { "#s": "stream", "#v": "version" },
                "ExpressionAttributeValues": { ":s": { "S": stream }, ":v": { "N": "1" } },
            })
        };
        let insert = |stream: &str| {
            json!({
                "Statement": format!("INSERT INTO \"{LOG}\" VALUE {{'at': ?, 'stream': ?}}"),
                "Parameters": [{ "S": "tank-x" }, { "S": stream }],
            })
        };
        let batch = |stream: &str| json!({ "RequestItems": { LOG: { "Keys": [{ "stream": { "S": "tank-1" } }, { "stream": { "S": stream } }] } } });
        for (operation, request) in [
            ("GetItem", &get as &dyn Fn(&str) -> Value),
            ("Query", &query),
            ("ExecuteStatement", &insert),
            ("BatchGetItem", &batch),
        ] {
            assert_eq!(dynamodb(FENCED, operation, request("tank-2")), None, "{operation}");
            assert!(dynamodb(FENCED, operation, request("site-2")).is_some(), "{operation}");
        }
    }
}
