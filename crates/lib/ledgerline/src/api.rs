//! The operations of a function behind the HTTP API, as data: the source of the OpenAPI document.
//!
//! A runner makes the operations from the routes that it runs. The development binary prints them
//! with `--operations`; no shipped function contains them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::manifest::Scope;

/// The operations of one function, with the schemas that they share.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Operations {
    /// The operations, in the order of the routes.
    pub operations: Vec<Operation>,
    /// The schemas of named types. The operations refer to them as `#/components/schemas/<name>`.
    pub schemas: BTreeMap<String, Value>,
}

/// A route of the HTTP API, with its request and its answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Operation {
    /// Method and path: `POST /tanks/{id}/fills`.
    pub route: String,
    /// The scope that a caller's token must have.
    pub scope: Scope,
    /// The purpose of the route, in a few words. Without it, the contract takes the first sentence
    /// about the body or the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// Whether the route is a command or a query.
    pub kind: OperationKind,
    /// The schemas of the parameters in the path.
    pub path: BTreeMap<String, Value>,
    /// The parameters in the query.
    pub query: Vec<Parameter>,
    /// The schema of the body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<Value>,
    /// The largest request body, in bytes, if it is not 64 KB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_limit: Option<usize>,
    /// The schema of the body of a success.
    pub answer: Value,
    /// The kinds of problems that the route may answer.
    pub problems: Vec<ProblemKind>,
}

/// The two kinds of operations.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum OperationKind {
    /// A route that appends a commit.
    #[serde(rename_all = "camelCase")]
    Command {
        /// Whether the command starts a stream, and answers `201` with a `Location`.
        creates: bool,
        /// Whether a request needs `If-Match`.
        if_match_required: bool,
    },
    /// A route that reads.
    #[serde(rename_all = "camelCase")]
    Query {
        /// Whether the route applies `If-Match` and `If-None-Match`.
        conditional: bool,
    },
}

/// A parameter in a query.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Parameter {
    /// The name of the parameter.
    pub name: String,
    /// The schema of a value.
    pub schema: Value,
    /// How often a request may have it.
    pub occurs: Occurs,
}

/// How often a request may have a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Occurs {
    /// At most once.
    Optional,
    /// Once.
    Required,
    /// Any number of times.
    Several,
}

/// A kind of problem.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ProblemKind {
    /// The HTTP status.
    pub status: u16,
    /// The stable name: the last part of the problem's `type`.
    pub code: String,
}
