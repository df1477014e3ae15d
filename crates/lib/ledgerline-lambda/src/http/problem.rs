//! Problems (RFC 9457), and the catalogue of their kinds.

use std::sync::OnceLock;

use http::StatusCode;
use ledgerline::url_text::NoText;
use serde::Serialize;
use serde_json::Value;

/// The first part of the `type` of every problem; the problem's code follows. It is set at start,
/// because it belongs to the product and not to the libraries.
pub(super) static PROBLEM_TYPE_PREFIX: OnceLock<String> = OnceLock::new();

/// A kind of problem. Every problem of the kind has this code and this status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProblemType {
    /// The stable name in kebab case: the last part of the problem's `type`.
    pub code: &'static str,
    /// The HTTP status.
    pub status: StatusCode,
}

macro_rules! problem_types {
    ($($(#[$attribute:meta])* $name:ident = $code:literal, $status:ident;)+) => {
        $($(#[$attribute])* pub(crate) const $name: ProblemType = ProblemType { code: $code, status: StatusCode::$status };)+

        /// All kinds of problems that are not a refusal by a domain (`Aggregate::REFUSALS`).
        pub const PROBLEM_TYPES: &[ProblemType] = &[$($name),+];
    };
}

problem_types! {
    /// A part of the request is malformed.
    INVALID_REQUEST = "invalid-request", BAD_REQUEST;
    /// The request names no caller.
    UNAUTHENTICATED = "unauthenticated", UNAUTHORIZED;
    /// Only operators may send the request.
    NOT_AN_OPERATOR = "not-an-operator", FORBIDDEN;
    /// The route does not exist.
    NO_ROUTE = "no-route", NOT_FOUND;
    /// Another writer appended the version after the one that `If-Match` names.
    OVERTAKEN = "overtaken", CONFLICT;
    /// The command lost too many races against other writers.
    CONTENDED = "conflict", CONFLICT;
    /// `If-Match` names another version.
    PRECONDITION_FAILED = "precondition-failed", PRECONDITION_FAILED;
    /// The body is larger than the limit.
    BODY_TOO_LARGE = "body-too-large", PAYLOAD_TOO_LARGE;
    /// The commit would be larger than the limit.
    COMMIT_TOO_LARGE = "commit-too-large", PAYLOAD_TOO_LARGE;
    /// The Idempotency-Key was used for another request.
    IDEMPOTENCY_KEY_REUSED = "idempotency-key-reused", UNPROCESSABLE_ENTITY;
    /// The route requires `If-Match`.
    PRECONDITION_REQUIRED = "precondition-required", PRECONDITION_REQUIRED;
    /// The caller sends too many requests.
    TOO_MANY_REQUESTS = "too-many-requests", TOO_MANY_REQUESTS;
    /// The server failed; its logs have the reason.
    INTERNAL = "internal", INTERNAL_SERVER_ERROR;
    /// The service is busy, or the database does not answer in time. The client may retry.
    UNAVAILABLE = "unavailable", SERVICE_UNAVAILABLE;
    /// The view does not yet show the version that the request asks for.
    READ_MODEL_BEHIND = "read-model-behind", SERVICE_UNAVAILABLE;
}

/// An error in a request, for programs and for people (RFC 9457).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The HTTP status.
    pub status: StatusCode,
    /// The stable name in kebab case: the last part of the problem's `type`.
    pub code: &'static str,
    /// The text that describes this occurrence.
    pub detail: String,
    /// The wrong field, parameter or header.
    pub field: Option<String>,
    /// The version of the aggregate, if the request expected another one.
    pub version: Option<u64>,
}

impl From<NoText> for Problem {
    fn from(part: NoText) -> Self {
        Self::new(INVALID_REQUEST, part.to_string())
    }
}

impl Problem {
    /// Creates a problem of this kind.
    pub fn new(kind: ProblemType, detail: impl Into<String>) -> Self {
        Self {
            status: kind.status,
            code: kind.code,
            detail: detail.into(),
            field: None,
            version: None,
        }
    }

    /// Creates the problem of a malformed request.
    pub fn field(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { field: Some(field.into()), ..Self::new(INVALID_REQUEST, detail) }
    }

    /// Creates the problem of a missing route, although the API sent the request to this function.
    pub fn no_route() -> Self {
        Self::new(NO_ROUTE, "there is no such route")
    }

    /// Creates the problem of a busy service, or of a database that does not answer in time. The
    /// client may retry.
    pub(crate) fn unavailable() -> Self {
        Self::new(UNAVAILABLE, "the service is busy: retry")
    }

    /// Creates the problem of a server failure, whose reason is in the logs.
    pub fn internal() -> Self {
        Self::new(INTERNAL, "the request could not be handled")
    }

    /// Builds the body of the problem.
    pub(crate) fn body(&self) -> Value {
        #[derive(Serialize)]
        struct Body<'a> {
            r#type: String,
            title: String,
            status: u16,
            detail: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            field: Option<&'a str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            version: Option<u64>,
        }
        let title = self.code.replace('-', " ");
        let types = PROBLEM_TYPE_PREFIX.get().map_or("urn:problem:", String::as_str);
        let body = Body {
            r#type: format!("{types}{}", self.code),
            title: title[..1].to_uppercase() + &title[1..],
            status: self.status.as_u16(),
            detail: &self.detail,
            field: self.field.as_deref(),
            version: self.version,
        };
        serde_json::to_value(body).unwrap_or_default()
    }
}
