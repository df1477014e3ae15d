//! Checks who may call functions with routes: only the API, whose authorizer says who calls, and
//! callers with IAM credentials through a URL. Any other event could name any caller.

use std::rc::Rc;

use serde_json::{Value, json};

use super::{Rules, names, policies::widen};
use crate::{lookup::list, policy};

const HTTP_API: &str = "AWS::Serverless::HttpApi";

pub(super) fn check(rules: &mut Rules<'_>) {
    for (id, api) in rules.resources(HTTP_API) {
        let default = api["Auth"]["DefaultAuthorizer"].as_str().unwrap_or_default();
        let jwt = &api["Auth"]["Authorizers"][default]["JwtConfiguration"];
        let is_there = !jwt["issuer"].is_null() && !jwt["audience"].is_null();
        let message = "without DefaultAuthorizer, a JWT authorizer, the API accepts every request";
        rules.require(is_there, id, "Auth", message);
        let message = "its routes would have no authorizer: delete it, and add routes in code";
        for key in ["DefinitionBody", "DefinitionUri"] {
            rules.require(api[key].is_null(), id, key, message);
        }
    }
    for (id, _) in rules.resources("AWS::Lambda::Url") {
        rules.expect(id, "", &json!({ "AuthType": "AWS_IAM" }));
    }
    for (id, function) in rules.functions() {
        let message = "its URL may be open: write an AWS::Lambda::Url with AuthType: AWS_IAM";
        rules.require(function["FunctionUrlConfig"].is_null(), id, "FunctionUrlConfig", message);
        let routes = rules.events(id, "HttpApi");
        for (path, route) in &routes {
            check_route(rules, id, path, route);
        }
        let variables = &function["Environment"]["Variables"];
        let is_sequencer =
            !variables["SEQUENCE_TABLE"].is_null() && !rules.events(id, "DynamoDB").is_empty();
        if !routes.is_empty() {
            check_invokers(
                rules,
                id,
                &["", ":live", ":$LATEST", ":1"],
                "whose event names the caller: add the condition lambda:InvokedViaFunctionUrl, and no other, or delete the statement",
            );
        } else if is_sequencer {
            check_invokers(
                rules,
                id,
                &[":live", ":1"],
                "which trusts the records of such a call: name the function without its alias",
            );
        }
        check_events(rules, id, !routes.is_empty());
        check_urls(rules, id, &routes);
    }
    check_clients(rules);
}

fn check_route(rules: &mut Rules<'_>, id: &str, path: &str, route: &Value) {
    // The route of a function with a condition has the plain id.
    let api = route["ApiId"]["Ref"].as_str().or(route["ApiId"].as_str()).unwrap_or_default();
    let message = "the route is on no API of the template: write ApiId: !Ref HttpApi";
    rules.require(rules.kind(api) == HTTP_API, id, path, message);
    let message =
        "the route has an Authorizer of its own: delete it, so that the API's default applies";
    rules.require(route["Auth"]["Authorizer"].is_null(), id, path, message);
    let scopes = list(&route["Auth"]["AuthorizationScopes"]);
    let message = "every token would do: write Auth: { AuthorizationScopes: [<a scope>] }";
    rules.require(!scopes.is_empty(), id, path, message);
}

/// Checks the rights and permissions to invoke a function. SAM writes the permission of the API.
fn check_invokers(rules: &mut Rules<'_>, function: &str, suffixes: &[&str], why: &str) {
    let arn = rules.source.arn(function).unwrap_or_default();
    for (id, statement) in Rc::clone(&rules.statements).iter() {
        let is_direct = suffixes.iter().any(|it| invokes(statement, &format!("{arn}{it}")));
        let message = format!("it allows a direct lambda:InvokeFunction of {function}, {why}");
        rules.require(!is_direct, id, "", message);
    }
    for (id, properties) in rules.resources("") {
        let is_way = match rules.kind(id) {
            "AWS::Lambda::Permission" => properties["InvokedViaFunctionUrl"] != true,
            kind => kind.starts_with("AWS::ApiGateway"),
        };
        // SAM writes no id of the API into the permission of a function with a condition.
        let is_conditional = !rules.json["Resources"][function]["Condition"].is_null();
        let is_needed = is_conditional
            && properties["Principal"] == "apigateway.amazonaws.com"
            && names(&properties["SourceArn"].to_string(), "HttpApi");
        let is_of_it = is_way && !is_needed && names(&properties.to_string(), function);
        rules.require(!is_of_it, id, "", format!("it lets another principal invoke {function}: delete it, because SAM writes the API's permission"));
    }
}

/// Whether a statement allows a direct invocation. Only the exact condition that the request comes
/// through a URL excludes it. Any other condition may hold.
fn invokes(statement: &Value, arn: &str) -> bool {
    let through_url = json!({ "Bool": { "lambda:InvokedViaFunctionUrl": "true" } });
    let wide = widen(statement, "").filter(|_| statement["Condition"] != through_url);
    let Some(wide) = wide else { return false };
    let named = wide["Action"].to_string();
    let mut actions = ["lambda:invokefunction", "lambda:invokeasync"].into_iter();
    let document = [json!({ "Version": "2012-10-17", "Statement": [wide] })];
    // A statement that cannot be read may allow it.
    (named == "null" || named.contains('*') || named.contains(":invoke"))
        && actions.any(|action| policy::allows(&document, action, arn, &[]).unwrap_or(true))
}

/// Checks that a function gets no events that could name any caller. An `Api` is a REST API.
fn check_events(rules: &mut Rules<'_>, id: &str, has_routes: bool) {
    let events = rules.property(id, "Events").as_object().into_iter().flatten();
    for (name, event) in events {
        let kind = event["Type"].as_str().unwrap_or_default();
        let is_safe = kind == "HttpApi" || kind != "Api" && !has_routes;
        let message = format!("an event of type {kind} could name any caller: delete it");
        rules.require(is_safe, id, &format!("Events/{name}"), message);
    }
}

fn check_urls(rules: &mut Rules<'_>, function: &str, routes: &[(String, &Value)]) {
    let mut scopes = routes.iter().flat_map(|(_, it)| list(&it["Auth"]["AuthorizationScopes"]));
    let shows_all = scopes.any(|it| it.as_str().is_some_and(|it| it.ends_with("/events")));
    let urls = rules.resources("AWS::Lambda::Url");
    for (id, _) in urls.filter(|(_, url)| names(&url.to_string(), function)) {
        let message = format!(
            "a URL has no scopes, and {function} shows the events of all callers: delete it"
        );
        rules.require(!shows_all, id, "", message);
    }
}

/// Checks the clients of the user pool. Every user of the pool has the scopes of a client with which
/// people sign in.
fn check_clients(rules: &mut Rules<'_>) {
    let audience: String =
        rules.resources(HTTP_API).map(|(_, it)| it["Auth"].to_string()).collect();
    let mut offered = Vec::new();
    for (id, client) in rules.resources("AWS::Cognito::UserPoolClient") {
        let scopes = list(&client["AllowedOAuthScopes"]).into_iter().filter_map(Value::as_str);
        let scopes: Vec<_> = scopes.filter(|scope| scope.contains('/')).collect();
        let message = "the API refuses its tokens: add it to the audience of the authorizer";
        rules.require(names(&audience, id) || scopes.is_empty(), id, "", message);
        let events = scopes.iter().find(|scope| scope.ends_with("/events")).unwrap_or(&"");
        let is_program = list(&client["AllowedOAuthFlows"]) == ["client_credentials"];
        rules.require(is_program || events.is_empty(), id, "AllowedOAuthFlows", format!("every user of the pool would get the scope {events}: write AllowedOAuthFlows: [client_credentials]"));
        offered.extend(scopes);
    }
    let has_pool = rules.resources("AWS::Cognito::UserPoolResourceServer").next().is_some();
    for (id, _) in rules.functions().filter(|_| has_pool) {
        for (path, route) in rules.events(id, "HttpApi") {
            let scopes = list(&route["Auth"]["AuthorizationScopes"]).into_iter();
            for scope in scopes.filter_map(Value::as_str) {
                let message =
                    format!("no client offers the scope {scope}: add it to AllowedOAuthScopes");
                rules.require(offered.contains(&scope), id, &path, message);
            }
        }
    }
}
