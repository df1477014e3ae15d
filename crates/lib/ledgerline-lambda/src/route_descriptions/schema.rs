//! Descriptions with their schemas, and the operations that they make.

use std::{collections::BTreeMap, sync::Arc};

use ledgerline::{
    Id, Refusal,
    api::{Occurs, Operation, OperationKind, Operations, Parameter, ProblemKind},
    manifest::Scope,
};
use schemars::{JsonSchema, Schema, SchemaGenerator, generate::SchemaSettings};
use serde_json::Value;

use crate::{
    failure::Error,
    http::problem::{
        BODY_TOO_LARGE, COMMIT_TOO_LARGE, CONTENDED, IDEMPOTENCY_KEY_REUSED, INTERNAL,
        INVALID_REQUEST, NOT_AN_OPERATOR, OVERTAKEN, PRECONDITION_FAILED, PRECONDITION_REQUIRED,
        Problem, ProblemType, READ_MODEL_BEHIND, TOO_MANY_REQUESTS, UNAUTHENTICATED, UNAVAILABLE,
    },
    start::print_operations,
};

/// A function that makes the schema of a type.
type Make = Arc<dyn Fn(&mut SchemaGenerator) -> Schema + Send + Sync>;

/// The description of a route.
#[derive(Clone, Default)]
pub(crate) struct Described {
    summary: Option<&'static str>,
    body: Option<Make>,
    body_limit: Option<usize>,
    answer: Option<Make>,
    path: BTreeMap<&'static str, Make>,
    query: Vec<(&'static str, Occurs, Make)>,
    refusals: Vec<ProblemKind>,
}

impl std::fmt::Debug for Described {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Described").finish_non_exhaustive()
    }
}

fn make<T: JsonSchema>() -> Make {
    Arc::new(|generator| generator.subschema_for::<T>())
}

impl Described {
    pub(crate) fn summary(self, text: &'static str) -> Self {
        Self { summary: Some(text), ..self }
    }

    pub(crate) fn body<T: JsonSchema>(self) -> Self {
        Self { body: Some(make::<T>()), ..self }
    }

    pub(crate) fn body_limit(self, bytes: usize) -> Self {
        Self { body_limit: Some(bytes), ..self }
    }

    pub(crate) fn answer<T: JsonSchema>(self) -> Self {
        Self { answer: Some(make::<T>()), ..self }
    }

    pub(crate) fn answer_by(
        self,
        make: impl Fn(&mut SchemaGenerator) -> Schema + Send + Sync + 'static,
    ) -> Self {
        Self { answer: Some(Arc::new(make)), ..self }
    }

    pub(crate) fn path<T: JsonSchema>(mut self, name: &'static str) -> Self {
        self.path.insert(name, make::<T>());
        self
    }

    pub(crate) fn query<T: JsonSchema>(self, name: &'static str, occurs: Occurs) -> Self {
        self.query_by(name, occurs, |generator| generator.subschema_for::<T>())
    }

    pub(crate) fn query_by(
        mut self,
        name: &'static str,
        occurs: Occurs,
        make: impl Fn(&mut SchemaGenerator) -> Schema + Send + Sync + 'static,
    ) -> Self {
        self.query.push((name, occurs, Arc::new(make)));
        self
    }

    pub(crate) fn refusals(mut self, refusals: &[Refusal]) -> Self {
        self.refusals.extend(refusals.iter().map(|refusal| {
            let Problem { status, code, .. } = Problem::from(refusal);
            kind(ProblemType { code, status })
        }));
        self
    }
}

fn kind(ProblemType { code, status }: ProblemType) -> ProblemKind {
    ProblemKind { status: status.as_u16(), code: code.to_owned() }
}

/// The kinds of routes, with the conditions that decide which problems they answer.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RouteKind {
    Command {
        creates: bool,
        if_match_required: bool,
    },
    Query {
        waits: bool,
    },
    /// A query that applies no conditions.
    Unconditional,
}

impl RouteKind {
    fn problems(self) -> Vec<ProblemType> {
        let all = [INVALID_REQUEST, UNAUTHENTICATED, TOO_MANY_REQUESTS, INTERNAL, UNAVAILABLE];
        let own: &[ProblemType] = match self {
            Self::Command { .. } => &[
                PRECONDITION_FAILED,
                BODY_TOO_LARGE,
                COMMIT_TOO_LARGE,
                CONTENDED,
                IDEMPOTENCY_KEY_REUSED,
                OVERTAKEN,
            ],
            Self::Query { waits: true } => &[PRECONDITION_FAILED, READ_MODEL_BEHIND],
            Self::Query { waits: false } => &[PRECONDITION_FAILED],
            Self::Unconditional => &[],
        };
        let required = matches!(self, Self::Command { if_match_required: true, .. });
        let required = required.then_some(PRECONDITION_REQUIRED);
        all.into_iter().chain(own.iter().copied()).chain(required).collect()
    }
}

/// Prints the operations of these routes.
pub(crate) fn print<'a>(
    routes: impl IntoIterator<Item = (&'a str, Scope, RouteKind, &'a Described)>,
) -> Result<(), Error> {
    print_operations(&operations(routes))
}

fn operations<'a>(
    routes: impl IntoIterator<Item = (&'a str, Scope, RouteKind, &'a Described)>,
) -> Operations {
    let settings = || {
        SchemaSettings::draft2020_12().with(|settings| {
            settings.definitions_path = "/components/schemas".into();
            settings.meta_schema = None;
        })
    };
    let (mut read, mut written) =
        (settings().into_generator(), settings().for_serialize().into_generator());
    let operations = routes.into_iter().map(|(route, scope, kind, described)| {
        operation(route, scope, kind, described, &mut read, &mut written)
    });
    let operations = operations.collect();
    let mut schemas = BTreeMap::new();
    for generator in [&mut written, &mut read] {
        schemas.extend(generator.take_definitions(true));
    }
    Operations { operations, schemas }
}

fn operation(
    route: &str,
    scope: Scope,
    route_kind: RouteKind,
    described: &Described,
    read: &mut SchemaGenerator,
    written: &mut SchemaGenerator,
) -> Operation {
    let is_in_path = |name: &&str| route.contains(&format!("{{{name}}}"));
    if let Some(name) = described.path.keys().find(|name| !is_in_path(name)) {
        panic!("{route} has no parameter `{name}`, which `path_parameter` declares");
    }
    let mut path = BTreeMap::new();
    for segment in route.split('/') {
        if let Some(name) = segment.strip_prefix('{').and_then(|name| name.strip_suffix('}')) {
            let schema = match described.path.get(name) {
                Some(make) => make(read),
                None => read.subschema_for::<Id>(),
            };
            path.insert(name.to_owned(), schema.to_value());
        }
    }
    let query = described.query.iter().map(|(name, occurs, make)| {
        let schema = make(read).to_value();
        Parameter { name: (*name).to_owned(), schema, occurs: *occurs }
    });
    let operator = (scope == Scope::Operate).then_some(NOT_AN_OPERATOR);
    let problems = route_kind.problems().into_iter().chain(operator).map(kind);
    let mut listed: Vec<ProblemKind> = Vec::new();
    for problem in problems.chain(described.refusals.clone()) {
        if !listed.contains(&problem) {
            listed.push(problem);
        }
    }
    Operation {
        route: route.to_owned(),
        scope,
        summary: described.summary.map(ToOwned::to_owned),
        kind: match route_kind {
            RouteKind::Command { creates, if_match_required } => {
                OperationKind::Command { creates, if_match_required }
            }
            RouteKind::Query { .. } => OperationKind::Query { conditional: true },
            RouteKind::Unconditional => OperationKind::Query { conditional: false },
        },
        path,
        query: query.collect(),
        body: described.body.as_ref().map(|make| make(read).to_value()),
        body_limit: described.body_limit,
        answer: described
            .answer
            .as_ref()
            .map_or(Value::Bool(true), |make| make(written).to_value()),
        problems: listed,
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use serde_json::json;

    use super::*;

    #[derive(JsonSchema)]
    #[expect(dead_code, reason = "only its schema is made")]
    struct Body {
        amount: ledgerline::Number<1, 9>,
    }

    #[test]
    fn an_operation_has_the_schemas_and_the_problems_of_its_route() {
        const TOO_LITTLE: Refusal = Refusal::refused("too-little", "there is less");
        let described = Described::default()
            .body::<Body>()
            .answer::<Body>()
            .refusals(&[TOO_LITTLE])
            .summary("Fill");
        let kind = RouteKind::Command { creates: false, if_match_required: true };
        let Operations { operations, schemas } =
            operations([("POST /tanks/{id}/fills", Scope::Operate, kind, &described)]);
        let operation = &operations[0];
        assert_eq!(operation.body, Some(json!({ "$ref": "#/components/schemas/Body" })));
        assert_eq!(operation.summary.as_deref(), Some("Fill"));
        assert_eq!(operation.path["id"]["format"], "uuid");
        assert_eq!(schemas["Body"]["properties"]["amount"]["maximum"], 9);
        let codes: Vec<_> =
            operation.problems.iter().map(|kind| (kind.status, &*kind.code)).collect();
        for expected in [
            (422, "too-little"),
            (428, "precondition-required"),
            (403, "not-an-operator"),
            (503, "unavailable"),
        ] {
            assert!(codes.contains(&expected), "{codes:?}");
        }
        assert!(codes.iter().all(|(status, _)| StatusCode::from_u16(*status).is_ok()));
        assert!(!codes.contains(&(503, "read-model-behind")));
    }
}
