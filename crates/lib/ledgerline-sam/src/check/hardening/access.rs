//! Checks access and identity: the API, the clients of the user pool, and the policies that allow
//! an invocation.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::{Template, events};
use crate::{
    lookup::{list, resources},
    policy,
};

const INVOKE: &str = "lambda:InvokeFunction";
/// The condition key that is true for a request through the URL of a function.
const VIA_URL: &str = "lambda:InvokedViaFunctionUrl";

impl Template<'_> {
    /// Checks that the API refuses every request without a token.
    pub(super) fn api(mut self) -> Self {
        for (id, api) in resources(self.json, &["AWS::Serverless::HttpApi"]) {
            let auth = &api["Properties"]["Auth"];
            let default = auth["DefaultAuthorizer"].as_str().unwrap_or_default();
            if auth["Authorizers"][default]["JwtConfiguration"].is_null() {
                self.wrong(
                    id,
                    &["Auth"],
                    "without DefaultAuthorizer, a JWT authorizer, the API accepts every request",
                );
            }
        }
        for (id, function) in resources(self.json, &["AWS::Serverless::Function"]) {
            for (name, properties) in events(function, "HttpApi") {
                let keys = ["Events", name, "Properties"];
                let api = properties["ApiId"]["Ref"].as_str().unwrap_or_default();
                if self.json["Resources"][api]["Type"] != "AWS::Serverless::HttpApi" {
                    self.wrong(
                        id,
                        &keys,
                        "the route is on no API of the template: ApiId: !Ref HttpApi",
                    );
                }
                if !properties["Auth"]["Authorizer"].is_null() {
                    self.wrong(
                        id,
                        &keys,
                        "the route has an Authorizer of its own: delete it, so that the API's default applies",
                    );
                }
            }
        }
        self
    }

    /// Checks the clients of the user pool. The API must accept the tokens of each client, and some
    /// client must offer each scope. No client may offer a scope that its users must not have.
    pub(super) fn clients(mut self) -> Self {
        let servers = resources(self.json, &["AWS::Cognito::UserPoolResourceServer"]);
        let prefixes: Vec<_> =
            servers.filter_map(|(_, server)| server["Properties"]["Identifier"].as_str()).collect();
        let Some(prefix) = prefixes.first() else { return self };
        let mut audience = BTreeSet::new();
        for (_, api) in resources(self.json, &["AWS::Serverless::HttpApi"]) {
            let authorizers =
                api["Properties"]["Auth"]["Authorizers"].as_object().into_iter().flatten();
            authorizers.for_each(|(_, jwt)| {
                references(&jwt["JwtConfiguration"]["audience"], &mut audience)
            });
        }
        let mut offered = BTreeSet::new();
        for (id, client) in resources(self.json, &["AWS::Cognito::UserPoolClient"]) {
            let properties = &client["Properties"];
            let scopes: Vec<_> = list(&properties["AllowedOAuthScopes"])
                .into_iter()
                .filter_map(Value::as_str)
                .collect();
            offered.extend(scopes.iter().copied());
            if !audience.contains(id)
                && scopes.iter().any(|scope| scope.starts_with(&format!("{prefix}/")))
            {
                let message =
                    "the API refuses its tokens: add it to the audience of the authorizer";
                self.wrong(id, &[], message);
            }
            // The scope gives access to the events of all callers. Every user of the pool has the
            // scopes of a client with which people sign in.
            let is_program = list(&properties["AllowedOAuthFlows"]) == ["client_credentials"];
            if scopes.contains(&format!("{prefix}/events").as_str()) && !is_program {
                let message = format!(
                    "every user of the pool would get the scope {prefix}/events: write AllowedOAuthFlows: [client_credentials]"
                );
                self.wrong(id, &["AllowedOAuthFlows"], &message);
            }
        }
        for (id, function) in resources(self.json, &["AWS::Serverless::Function"]) {
            for (name, properties) in events(function, "HttpApi") {
                let scopes = list(&properties["Auth"]["AuthorizationScopes"]);
                for scope in scopes
                    .into_iter()
                    .filter_map(Value::as_str)
                    .filter(|scope| !offered.contains(scope))
                {
                    let message =
                        format!("no client offers the scope {scope}: add it to AllowedOAuthScopes");
                    self.wrong(id, &["Events", name, "Properties", "Auth"], &message);
                }
            }
        }
        self
    }

    /// Checks the permissions to invoke functions. Only the API may invoke a function with routes,
    /// and a caller only through the function's URL. The event of a direct invocation could name
    /// any caller. Only the stream may invoke the sequencer under its alias, because the sequencer
    /// trusts such records.
    pub(super) fn invokers(mut self) -> Self {
        let read = self.source.statements().and_then(|statements| {
            Ok((statements, self.source.template(&BTreeMap::new(), "http://127.0.0.1")?.functions))
        });
        // `check::problems` reports a template that cannot be read.
        let Ok((statements, functions)) = read else { return self };
        for (policy, statement) in &statements {
            for key in unguarded(statement) {
                let message = format!(
                    "its ForAllValues is true for a request without {key}: add \"Null\": {{ {key}: \"false\" }}"
                );
                self.wrong(policy, &[], &message);
            }
        }
        for function in functions {
            let id = function.id.as_str();
            let resource = &self.json["Resources"][id];
            let has_routes = events(resource, "HttpApi").next().is_some();
            let is_sequencer = events(resource, "DynamoDB").next().is_some()
                && !resource["Properties"]["Environment"]["Variables"]["SEQUENCE_TABLE"].is_null();
            let named = |suffix: &[&str]| {
                suffix.iter().map(|suffix| format!("{}{suffix}", function.arn)).collect()
            };
            let (arns, why): (Vec<_>, _) = match (has_routes, is_sequencer) {
                (true, _) => (
                    named(&["", ":live", ":$LATEST", ":1"]),
                    "whose event names the caller: add the condition lambda:InvokedViaFunctionUrl, and no other, or delete the statement",
                ),
                (false, true) => (
                    named(&[":live", ":1"]),
                    "which trusts the records of such a call: name the function without its alias",
                ),
                (false, false) => continue,
            };
            for (policy, statement) in &statements {
                match allows_directly(statement, &arns) {
                    Ok(true) => self.wrong(
                        policy,
                        &[],
                        &format!("it allows a direct {INVOKE} of {id}, {why}"),
                    ),
                    Ok(false) => {}
                    Err(error) => {
                        self.wrong(policy, &[], &format!("a statement cannot be read: {error}"))
                    }
                }
            }
            self.permissions_of(id);
        }
        for (id, attached) in
            resources(self.json, &["AWS::IAM::Role", "AWS::IAM::User", "AWS::IAM::Group"])
        {
            let policies = list(&attached["Properties"]["ManagedPolicyArns"]);
            if policies.iter().any(|policy| policy["Ref"].is_null()) {
                self.wrong(
                    id,
                    &["ManagedPolicyArns"],
                    "it has a managed policy whose actions are not in the template",
                );
            }
        }
        self
    }

    /// Finds permissions of other principals to invoke a function. SAM writes the permission of the
    /// API. With another permission, another service or an API of another account could name any
    /// caller.
    fn permissions_of(&mut self, function: &str) {
        for (id, permission) in resources(self.json, &["AWS::Lambda::Permission"]) {
            let properties = &permission["Properties"];
            let mut named = BTreeSet::new();
            references(&properties["FunctionName"], &mut named);
            let is_of_it = named.iter().any(|named| named.split('.').next() == Some(function));
            if is_of_it && properties["InvokedViaFunctionUrl"] != true {
                self.wrong(
                    id,
                    &[],
                    &format!("it lets another principal invoke {function}: delete it, because SAM writes the API's permission"),
                );
            }
        }
    }
}

/// Whether a statement allows a direct invocation of one of these functions. Only the exact
/// condition that the request comes through a URL excludes it. Any other condition may hold.
fn allows_directly(statement: &Value, arns: &[String]) -> anyhow::Result<bool> {
    let through_url = json!({ "Bool": { VIA_URL: "true" } });
    if statement["Condition"] == through_url {
        return Ok(false);
    }
    let mut unconditional = statement.clone();
    unconditional.as_object_mut().map(|statement| statement.remove("Condition"));
    let document = json!({ "Version": "2012-10-17", "Statement": [unconditional] });
    for arn in arns {
        for action in [INVOKE, "lambda:InvokeAsync"] {
            if policy::allows(std::slice::from_ref(&document), action, arn, &[])? {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// The keys of `ForAllValues` conditions in a statement that a request may lack. Source: the IAM
/// user guide, "Multivalued context keys": `ForAllValues` is true where the request has no such
/// key.
///
/// A statement that allows only `dynamodb:PartiQLInsert` is left out. If AWS gives that action no
/// key, `Null` would deny each append of each function. No test in an account has shown whether it
/// does (docs/decisions.md, 4).
fn unguarded(statement: &Value) -> Vec<String> {
    if list(&statement["Action"]).into_iter().all(|action| action == "dynamodb:PartiQLInsert") {
        return Vec::new();
    }
    let conditions = statement["Condition"].as_object().into_iter().flatten();
    let of_all = conditions.filter(|(operator, _)| operator.starts_with("ForAllValues:"));
    let keys =
        of_all.flat_map(|(_, keys)| keys.as_object().into_iter().flatten().map(|(key, _)| key));
    let is_guarded = |key: &&String| {
        let null = &statement["Condition"]["Null"][key.as_str()];
        null == "false" || null == false
    };
    keys.filter(|key| !is_guarded(key)).cloned().collect()
}

/// The logical ids that a value refers to, at any depth.
fn references<'v>(value: &'v Value, found: &mut BTreeSet<&'v str>) {
    match value {
        Value::Object(entries) => {
            found.extend(value["Ref"].as_str());
            found.extend(value["Fn::GetAtt"].as_str().or(value["Fn::GetAtt"][0].as_str()));
            let text =
                value["Fn::Sub"].as_str().or(value["Fn::Sub"][0].as_str()).unwrap_or_default();
            found.extend(text.split("${").skip(1).filter_map(|rest| rest.split('}').next()));
            entries.values().for_each(|value| references(value, found));
        }
        Value::Array(values) => values.iter().for_each(|value| references(value, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::TANKS;

    #[test]
    fn a_caller_with_the_policy_of_a_url_cannot_invoke_the_function_directly() {
        // Given the policies of the tanks,
        let statements = TANKS.statements().unwrap();
        let of_it = statements.into_iter().filter(|(id, _)| id == "TankCommandsCallerPolicy");
        let statements: Vec<_> = of_it.map(|(_, statement)| statement).collect();
        let policy = &[json!({ "Version": "2012-10-17", "Statement": statements })][..];
        let function = "arn:aws:lambda:us-east-1:000000000000:function:tanks-TankCommandsFunction";
        for (action, of, via_url, may) in [
            ("lambda:InvokeFunctionUrl", ":live", None, true),
            ("lambda:InvokeFunction", ":live", Some(true), true),
            // when a caller invokes the function directly, or another function through its URL,
            ("lambda:InvokeFunction", ":live", None, false),
            ("lambda:InvokeFunction", ":live", Some(false), false),
            ("lambda:InvokeFunction", "", None, false),
            ("lambda:InvokeFunction", "-2:live", Some(true), false),
        ] {
            // then IAM denies it.
            let context: Vec<_> =
                via_url.map(|it| ("lambda:InvokedViaFunctionUrl", it)).into_iter().collect();
            let allowed =
                policy::allows(policy, action, &format!("{function}{of}"), &context).unwrap();
            assert_eq!(allowed, may, "{action} {of} {via_url:?}");
        }
    }
}
