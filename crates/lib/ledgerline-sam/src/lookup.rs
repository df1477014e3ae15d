//! Finds values in the JSON of a template.

use serde_json::{Value, json};

/// The logical id of the table that holds the commits.
pub const COMMITS: &str = "CommitsTable";

/// The logical id of the table that holds `$all`.
pub const SEQUENCE: &str = "SequenceTable";

/// The logical id of the table that holds the actions of operators and the messages that they
/// parked. No function reads or writes it.
pub const OPERATIONS: &str = "OperationsTable";

/// The logical id of the bucket that holds the body objects.
pub const BODIES: &str = "BodiesBucket";

/// The logical id of the bucket that holds the batches of records that Lambda gave up.
pub const FAILURES: &str = "FailuresBucket";

/// The pattern of a rule that gets the new objects of a bucket whose keys begin with a prefix.
pub(crate) fn object_pattern(bucket: &Value, prefix: &Value) -> Value {
    json!({
        "source": ["aws.s3"], "detail-type": ["Object Created"],
        "detail": { "bucket": { "name": [bucket] }, "object": { "key": [{ "prefix": prefix }] } },
    })
}

/// The prefix of every scope: the identifier of the template's resource server. With another
/// identity provider, the template has no such server, and the prefix is that of the first scope of
/// a route.
#[must_use]
pub fn scope_prefix(template: &Value) -> Option<&str> {
    let mut servers = resources(template, &["AWS::Cognito::UserPoolResourceServer"]);
    let functions = resources(template, &["AWS::Serverless::Function"]);
    let events = functions.flat_map(|(_, function)| {
        function["Properties"]["Events"].as_object().into_iter().flatten()
    });
    let mut scopes = events
        .filter_map(|(_, event)| event["Properties"]["Auth"]["AuthorizationScopes"][0].as_str());
    servers
        .find_map(|(_, server)| server["Properties"]["Identifier"].as_str())
        .or_else(|| scopes.find_map(|scope| Some(scope.rsplit_once('/')?.0)))
}

/// The prefix of the `source` of every entry on the bus.
#[must_use]
pub fn event_source(template: &Value) -> Option<&str> {
    let mut functions = resources(template, &["AWS::Serverless::Function"]);
    functions.find_map(|(_, function)| {
        variable(template, &function["Properties"], "EVENT_SOURCE")?.as_str()
    })
}

/// Iterates over the resources of these types and their logical ids.
pub fn resources<'t>(
    template: &'t Value,
    types: &'t [&'t str],
) -> impl Iterator<Item = (&'t str, &'t Value)> {
    let resources = template["Resources"].as_object().into_iter().flatten();
    resources
        .filter(|(_, resource)| resource["Type"].as_str().is_some_and(|kind| types.contains(&kind)))
        .map(|(id, resource)| (id.as_str(), resource))
}

/// The values of a field that has one value or a list of them, as in policies.
#[must_use]
pub fn list(value: &Value) -> Vec<&Value> {
    match value.as_array() {
        Some(values) => values.iter().collect(),
        None if value.is_null() => Vec::new(),
        None => vec![value],
    }
}

/// The logical id that a value refers to, by `Ref` or by an attribute.
#[must_use]
pub fn logical_id(value: &Value) -> Option<&str> {
    let attribute = &value["Fn::GetAtt"];
    let whole = attribute.as_str().and_then(|path| path.split('.').next());
    value["Ref"].as_str().or(attribute[0].as_str()).or(whole)
}

/// The value of a variable of a function with these properties: its own, or the one in `Globals`.
pub(crate) fn variable<'t>(
    template: &'t Value,
    function: &'t Value,
    name: &str,
) -> Option<&'t Value> {
    [function, &template["Globals"]["Function"]]
        .into_iter()
        .find_map(|node| node["Environment"]["Variables"].get(name))
}

/// The logical ids that an `Fn::Sub` refers to, or those of each text of an `Fn::Join`, also where
/// a condition chooses the text.
pub(crate) fn substitutions(value: &Value) -> Vec<&str> {
    let text = value["Fn::Sub"].as_str().unwrap_or_default();
    let own = text.split("${").skip(1).filter_map(|rest| rest.split('}').next());
    let parts = list(&value["Fn::Join"][1]).into_iter();
    let parts = parts.chain(list(&value["Fn::If"]).into_iter().skip(1));
    own.chain(parts.flat_map(substitutions)).collect()
}

/// The name of a function's binary.
pub fn binary(function: &Value) -> &str {
    function["Metadata"]["BuildProperties"]["Binary"].as_str().unwrap_or_default()
}
