//! Who gets in, and as whom: the API, the clients of the user pool, and the policies that allow an invocation.

use std::collections::{BTreeMap, BTreeSet};

use ledgerline_local::{
    iam,
    permissions::{list, resources},
};
use serde_json::Value;

use super::{Template, events};

const INVOKE: &str = "lambda:InvokeFunction";

impl Template<'_> {
    /// The API must refuse every request without a token.
    pub(super) fn api(mut self) -> Self {
        for (id, api) in resources(self.json, &["AWS::Serverless::HttpApi"]) {
            let auth = &api["Properties"]["Auth"];
            let default = auth["DefaultAuthorizer"].as_str().unwrap_or_default();
            if auth["Authorizers"][default]["JwtConfiguration"].is_null() {
                self.wrong(id, &["Auth"], "without DefaultAuthorizer, a JWT authorizer, everybody gets in");
            }
        }
        for (id, function) in resources(self.json, &["AWS::Serverless::Function"]) {
            for (name, properties) in events(function, "HttpApi") {
                let keys = ["Events", name, "Properties"];
                let api = properties["ApiId"]["Ref"].as_str().unwrap_or_default();
                if self.json["Resources"][api]["Type"] != "AWS::Serverless::HttpApi" {
                    self.wrong(id, &keys, "the route is on no API of the template: ApiId: !Ref HttpApi");
                }
                if !properties["Auth"]["Authorizer"].is_null() {
                    self.wrong(id, &keys, "the route has an Authorizer of its own: leave the API's default");
                }
            }
        }
        self
    }

    /// Each client of the user pool must be let in, each scope must be offered by a client, and no scope by a client whose users should not have it.
    pub(super) fn clients(mut self) -> Self {
        let servers = resources(self.json, &["AWS::Cognito::UserPoolResourceServer"]);
        let prefixes: Vec<_> =
            servers.filter_map(|(_, server)| server["Properties"]["Identifier"].as_str()).collect();
        let Some(prefix) = prefixes.first() else { return self };
        let mut audience = BTreeSet::new();
        for (_, api) in resources(self.json, &["AWS::Serverless::HttpApi"]) {
            let authorizers = api["Properties"]["Auth"]["Authorizers"].as_object().into_iter().flatten();
            authorizers.for_each(|(_, jwt)| references(&jwt["JwtConfiguration"]["audience"], &mut audience));
        }
        let mut offered = BTreeSet::new();
        for (id, client) in resources(self.json, &["AWS::Cognito::UserPoolClient"]) {
            let properties = &client["Properties"];
            let scopes: Vec<_> =
                list(&properties["AllowedOAuthScopes"]).into_iter().filter_map(Value::as_str).collect();
            offered.extend(scopes.iter().copied());
            if !audience.contains(id) && scopes.iter().any(|scope| scope.starts_with(&format!("{prefix}/"))) {
                let message = "the API refuses its tokens: add it to the audience of the authorizer";
                self.wrong(id, &[], message);
            }
            // The events of everybody are for whoever has the scope, and every user of the pool has the scopes of a client that people sign in with.
            let is_program = list(&properties["AllowedOAuthFlows"]) == ["client_credentials"];
            if scopes.contains(&format!("{prefix}/events").as_str()) && !is_program {
                let message = format!(
                    "every user of the pool would get {prefix}/events from it: AllowedOAuthFlows: [client_credentials]"
                );
                self.wrong(id, &["AllowedOAuthFlows"], &message);
            }
        }
        for (id, function) in resources(self.json, &["AWS::Serverless::Function"]) {
            for (name, properties) in events(function, "HttpApi") {
                let scopes = list(&properties["Auth"]["AuthorizationScopes"]);
                for scope in
                    scopes.into_iter().filter_map(Value::as_str).filter(|scope| !offered.contains(scope))
                {
                    let message =
                        format!("nobody can get the scope {scope}: no client of the user pool offers it");
                    self.wrong(id, &["Events", name, "Properties", "Auth"], &message);
                }
            }
        }
        self
    }

    /// Only the API may invoke a function with routes, and callers by its URL: the event of a direct Invoke says by itself who calls. Only the stream may invoke the sequencer
    /// under its alias, because it believes the records that come so.
    pub(super) fn invokers(mut self) -> Self {
        let policies = match self.source.policies() {
            Ok(policies) => policies,
            Err(error) => {
                self.problems.push(error.to_string());
                return self;
            }
        };
        let arns: BTreeMap<_, _> = match self.source.template(&BTreeMap::new(), "http://127.0.0.1") {
            Ok(template) => {
                template.functions.into_iter().map(|function| (function.id, function.arn)).collect()
            }
            // The same is said when the template is read for the functions.
            Err(_) => return self,
        };
        for (id, function) in resources(self.json, &["AWS::Serverless::Function"]) {
            let Some(arn) = arns.get(id) else { continue };
            let has_routes = events(function, "HttpApi").next().is_some();
            let variables = &function["Properties"]["Environment"]["Variables"];
            let is_sequencer =
                events(function, "DynamoDB").next().is_some() && !variables["SEQUENCE_TABLE"].is_null();
            let live = format!("{arn}:live");
            let (named, why) = match (has_routes, is_sequencer) {
                (true, _) => (
                    vec![arn.as_str(), live.as_str()],
                    "and its event says who calls: add the condition lambda:InvokedViaFunctionUrl, or leave it out",
                ),
                (false, true) => (
                    vec![live.as_str()],
                    "whose records it believes without a look at the log: name it without its alias",
                ),
                (false, false) => continue,
            };
            for (policy, documents) in &policies {
                let allows = |arn: &&str| iam::allows(documents, INVOKE, arn, &[]);
                match named.iter().map(allows).collect::<Result<Vec<_>, _>>() {
                    Ok(allowed) if allowed.contains(&true) => {
                        self.wrong(policy, &[], &format!("it allows a direct {INVOKE} of {id}, {why}"));
                    }
                    Ok(_) => {}
                    Err(error) => self.wrong(policy, &[], &format!("its policies cannot be read: {error}")),
                }
            }
        }
        for (id, permission) in resources(self.json, &["AWS::Lambda::Permission"]) {
            let properties = &permission["Properties"];
            let is_service = properties["Principal"]
                .as_str()
                .is_some_and(|principal| principal.ends_with(".amazonaws.com"));
            if !is_service && properties["InvokedViaFunctionUrl"] != true {
                self.wrong(id, &[], "it lets somebody else invoke a function, whose event says who calls");
            }
        }
        self
    }
}

/// The logical ids that a value refers to, at any depth.
fn references<'v>(value: &'v Value, found: &mut BTreeSet<&'v str>) {
    match value {
        Value::Object(entries) => {
            found.extend(value["Ref"].as_str());
            entries.values().for_each(|value| references(value, found));
        }
        Value::Array(values) => values.iter().for_each(|value| references(value, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {

    use ledgerline_local::template::Source;

    use super::*;

    #[test]
    fn a_caller_with_the_policy_of_a_url_cannot_invoke_the_function_directly() {
        // Given the policies of a new workspace,
        let folder = tempfile::tempdir().unwrap().keep().join("shop");
        crate::new_workspace(&folder).unwrap();
        let policies = Source::read(&folder.join("template.yaml")).unwrap().policies().unwrap();
        let (_, policy) = policies.iter().find(|(id, _)| id == "ItemCommandsCallerPolicy").unwrap();
        let function = "arn:aws:lambda:us-east-1:000000000000:function:ledgerline-ItemCommandsFunction";
        for (action, of, via_url, may) in [
            ("lambda:InvokeFunctionUrl", ":live", None, true),
            ("lambda:InvokeFunction", ":live", Some(true), true),
            // when its holder invokes the function directly, or another one by its URL,
            ("lambda:InvokeFunction", ":live", None, false),
            ("lambda:InvokeFunction", ":live", Some(false), false),
            ("lambda:InvokeFunction", "", None, false),
            ("lambda:InvokeFunction", "-2:live", Some(true), false),
        ] {
            // then IAM denies it.
            let context: Vec<_> =
                via_url.map(|it| ("lambda:InvokedViaFunctionUrl", it)).into_iter().collect();
            let allowed = iam::allows(policy, action, &format!("{function}{of}"), &context).unwrap();
            assert_eq!(allowed, may, "{action} {of} {via_url:?}");
        }
    }
}
