//! Requests to a function URL, in addition to the HTTP API: they have no route, and a caller of IAM
//! instead of a token.

use std::collections::HashMap;

use aws_lambda_events::apigw::ApiGatewayV2httpRequest;
use ledgerline::{
    manifest::{Endpoint, Scope},
    url_text::{NoText, decode_path},
};

/// Returns the caller of a function URL: the ARN of a user, or that of a role without the session's
/// name, which differs each time.
pub(crate) fn principal(arn: &str) -> &str {
    match arn.rsplit_once('/') {
        Some((role, _session)) if arn.contains(":assumed-role/") => role,
        Some(_) | None => arn,
    }
}

/// The route key of a request to a function URL. Source: the developer guide of Lambda, "Invoking
/// Lambda function URLs", request payload format.
const NOT_ROUTED: &str = "$default";

/// Finds the route of a request to a function URL, as the HTTP API does: the path is decoded first.
/// An exact path has priority over one with parameters. Routes for operators are left out: the
/// permission to call the function does not include their scope.
///
/// # Errors
/// When the path is no text.
pub(crate) fn find_route(
    endpoints: &[Endpoint],
    mut request: ApiGatewayV2httpRequest,
) -> Result<ApiGatewayV2httpRequest, NoText> {
    if request.route_key.as_deref() != Some(NOT_ROUTED) {
        return Ok(request);
    }
    let path = decode_path(request.raw_path.as_deref().unwrap_or("/"))?;
    let requested = format!("{} {path}", request.request_context.http.method);
    let endpoints = endpoints.iter().filter(|endpoint| endpoint.scope != Scope::Operate);
    let mut routes: Vec<_> = endpoints.map(|endpoint| &*endpoint.route).collect();
    routes.sort_by_key(|route| route.matches('{').count());
    if let Some((route, parameters)) =
        routes.into_iter().find_map(|route| Some((route, parameters(route, &requested)?)))
    {
        request.route_key = Some(route.to_owned());
        request.path_parameters = parameters;
    }
    Ok(request)
}

/// Reads the parameters of the path, if this method and path are those of the route.
fn parameters(route: &str, requested: &str) -> Option<HashMap<String, String>> {
    if route.split('/').count() != requested.split('/').count() {
        return None;
    }
    let mut parameters = HashMap::new();
    for (expected, part) in route.split('/').zip(requested.split('/')) {
        match expected.strip_prefix('{').and_then(|name| name.strip_suffix('}')) {
            Some(name) if !part.is_empty() => {
                parameters.insert(name.to_owned(), part.to_owned());
            }
            Some(_) => return None,
            None if expected == part => {}
            None => return None,
        }
    }
    Some(parameters)
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use serde_json::json;

    use super::*;
    use crate::http::HttpRequest;

    #[test]
    fn a_request_through_a_function_url_finds_its_route_and_its_caller() {
        let endpoints =
            ["GET /tanks/{id}", "GET /tanks/full", "POST /tanks", "POST /tanks/{id}/fills"]
                .map(|route| Endpoint { route: route.into(), scope: Scope::Read });
        let of_operators =
            Endpoint { route: "POST /tanks/{id}/repairs".into(), scope: Scope::Operate };
        let endpoints = [&endpoints[..], &[of_operators]].concat();
        let requested = |method: &str, path: &str, arn: &str| {
            let event = json!({
                "version": "2.0", "routeKey": "$default", "rawPath": path, "headers": {}, "isBase64Encoded": false,
                "requestContext": {
                    "routeKey": "$default", "http": { "method": method, "path": path }, "timeEpoch": 0,
                    "authorizer": { "iam": { "userArn": arn, "callerId": "AROA1:session" } },
                },
            });
            find_route(&endpoints, serde_json::from_value(event).unwrap()).map(HttpRequest::from)
        };
        let role = "arn:aws:sts::123456789012:assumed-role/shop/session-7";
        let fills = requested("POST", "/t%61nks/a%20b/fills", role).unwrap();
        assert_eq!(
            (fills.route(), fills.path_parameter("id").unwrap()),
            ("POST /tanks/{id}/fills", "a b")
        );
        assert_eq!(fills.actor().unwrap(), "arn:aws:sts::123456789012:assumed-role/shop");
        let user = "arn:aws:iam::123456789012:user/division/ada";
        assert_eq!(requested("GET", "/tanks/7", user).unwrap().actor().unwrap(), user);
        for (method, path, route) in [
            ("GET", "/tanks/7", "GET /tanks/{id}"),
            ("GET", "/tanks/full", "GET /tanks/full"),
            ("POST", "/tanks", "POST /tanks"),
            ("POST", "/tanks/", NOT_ROUTED),
            ("GET", "/tanks/", NOT_ROUTED),
            ("PUT", "/tanks", NOT_ROUTED),
            ("GET", "/tanks/7/fills", NOT_ROUTED),
            ("GET", "/tanks/7%2Ffills", NOT_ROUTED),
            ("POST", "/tanks/7/repairs", NOT_ROUTED),
        ] {
            let request = requested(method, path, user).unwrap();
            assert_eq!(request.route(), route, "{method} {path}");
        }
        assert_eq!(requested("GET", "/tanks/%ff", user).unwrap_err().0, "/tanks/%ff");
        assert_eq!(
            requested("GET", "/tanks/7", "").unwrap().actor().unwrap_err().status,
            StatusCode::UNAUTHORIZED
        );
    }
}
