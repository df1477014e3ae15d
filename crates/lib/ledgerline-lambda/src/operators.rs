//! The check that a caller is an operator. A scope alone is no proof, because a client of a user
//! pool offers its scopes to every user. The token must also name the group `operators`.

use ledgerline::manifest::{Endpoint, Name, Scope};

use crate::{
    config,
    failure::Error,
    http::{
        problem::{NOT_AN_OPERATOR, Problem},
        request::HttpRequest,
    },
};

/// The variable with the name of the claim that lists a caller's groups: `cognito:groups` for a
/// user pool.
pub(crate) const CLAIM_VARIABLE: &str = "OPERATORS_CLAIM";

/// The group of operators.
const GROUP: &str = "operators";

/// The routes for operators, and the claim that lists a caller's groups.
#[derive(Debug)]
pub(crate) struct Operators {
    routes: Vec<Name>,
    claim: String,
}

impl Operators {
    /// Selects the routes for operators; `None` if there are none.
    ///
    /// # Errors
    /// When there are routes for operators, and `OPERATORS_CLAIM` is missing.
    pub(crate) fn from_env(endpoints: &[Endpoint]) -> Result<Option<Self>, Error> {
        let routes: Vec<_> = endpoints
            .iter()
            .filter(|it| it.scope == Scope::Operate)
            .map(|it| it.route.clone())
            .collect();
        if routes.is_empty() {
            Ok(None)
        } else {
            Ok(Some(Self { routes, claim: config::text(CLAIM_VARIABLE)? }))
        }
    }

    /// The claim of an operator: name and value.
    pub(crate) fn as_claim(&self) -> (&str, &str) {
        (&self.claim, GROUP)
    }

    /// Accepts a request to a route that is not for operators, or from an operator.
    ///
    /// # Errors
    /// `403` when only operators may send the request, and the caller is not one.
    pub(crate) fn check(&self, request: &HttpRequest) -> Result<(), Problem> {
        let is_open = !self.routes.iter().any(|route| route == request.route());
        if is_open || request.claim(&self.claim).is_some_and(|groups| has_group(groups, GROUP)) {
            return Ok(());
        }
        let detail = format!(
            "only operators may send this request: the token's claim `{}` does not name the group `{GROUP}`",
            self.claim
        );
        Err(Problem::new(NOT_AN_OPERATOR, detail))
    }
}

/// Whether a claim names this group. The HTTP API passes a claim on as text, and a list of groups
/// as `[first second]`.
///
/// In a user pool, names of groups have no spaces, but may have commas and brackets. So only a
/// space may end a name: otherwise the group `x,operators` would count as `operators`. An issuer
/// whose groups may have spaces must name the group in a claim of its own (docs/http.md).
fn has_group(groups: &str, group: &str) -> bool {
    let listed = groups.strip_prefix('[').and_then(|groups| groups.strip_suffix(']'));
    listed.map_or(groups == group, |listed| listed.split(' ').any(|name| name == group))
}

#[cfg(test)]
mod tests {
    use aws_lambda_events::apigw::ApiGatewayV2httpRequest;
    use http::StatusCode;
    use ledgerline_testing::http_event;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_caller_outside_the_group_is_refused_on_routes_for_operators_only() {
        // Given a function with a route for operators and another one,
        let operators = Operators {
            routes: vec!["POST /tanks/{id}/repairs".into()],
            claim: "cognito:groups".to_owned(),
        };
        for (groups, is_operator) in [
            (None, false),
            (Some("[operators]"), true),
            (Some("[drivers operators]"), true),
            (Some("operators"), true),
            (Some("drivers operators"), false),
            (Some(""), false),
            (Some("[]"), false),
            (Some("[drivers]"), false),
            (Some("[operators-of-tanks]"), false),
            (Some("[x,operators]"), false),
            (Some("[[operators]]"), false),
            (Some("Operators"), false),
        ] {
            // when a caller of these groups sends a request to either route,
            let asked = |route: &str| {
                let mut claims = json!({ "sub": "ada" });
                if let Some(groups) = groups {
                    claims["cognito:groups"] = groups.into();
                }
                let fields =
                    json!({ "requestContext": { "authorizer": { "jwt": { "claims": claims } } } });
                let event: ApiGatewayV2httpRequest = http_event(route, fields);
                operators.check(&event.into())
            };
            // then only an operator passes the check of the route for operators.
            let answer =
                asked("POST /tanks/{id}/repairs").map_err(|problem| (problem.status, problem.code));
            let refused = Err((StatusCode::FORBIDDEN, "not-an-operator"));
            assert_eq!(answer, if is_operator { Ok(()) } else { refused }, "{groups:?}");
            assert_eq!(asked("POST /tanks/{id}/fills"), Ok(()), "{groups:?}");
        }
    }
}
