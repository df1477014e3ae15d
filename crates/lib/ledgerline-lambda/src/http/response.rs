//! Responses, and the entity tags in them.

use aws_lambda_events::apigw::ApiGatewayV2httpResponse;
use http::{HeaderName, HeaderValue, StatusCode, header};
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::problem::{CONTENDED, Problem, READ_MODEL_BEHIND, TOO_MANY_REQUESTS, UNAVAILABLE};

/// The most bytes of rows or commits in a response, in Lambda's encoding: 5 MB. This leaves a sixth
/// of Lambda's 6 MB for the rest of the response. Source: the developer guide, "Lambda quotas",
/// "Invocation payload".
pub(crate) const MAX_ANSWER_BYTES: usize = 5_000_000;

/// Returns the bytes that a part of a body has in the response of the function. The body is a JSON
/// text inside of JSON, so each quote in a value of it becomes four characters.
pub(crate) fn encoded_bytes(part: &Value) -> usize {
    let is_escaped = |byte: &&u8| matches!(byte, b'"' | b'\\');
    let text = part.to_string();
    text.len() + text.as_bytes().iter().filter(is_escaped).count()
}

/// Returns a body, or a part of one, as JSON. Only a type that is no JSON fails, such as a map
/// without text keys: a programming error. A command is in the log by then, so it does not fail.
pub(crate) fn as_json(body: impl Serialize) -> Value {
    serde_json::to_value(body).unwrap_or_else(|error| {
        tracing::error!(%error, "the body of an answer is not JSON");
        Value::Null
    })
}

/// A response.
#[derive(Debug, Clone, PartialEq)]
pub struct Response {
    /// The HTTP status.
    pub status: StatusCode,
    /// Further headers.
    pub headers: Vec<(HeaderName, String)>,
    /// The JSON body, if there is one.
    pub body: Option<Value>,
}

impl Response {
    /// Creates a response with a body.
    pub fn json(status: StatusCode, body: Value) -> Self {
        Self { status, headers: Vec::new(), body: Some(body) }
    }

    /// Adds the ETag of a version to the response.
    #[must_use]
    pub(crate) fn with_version(mut self, version: u64) -> Self {
        self.headers.push((header::ETAG, etag(version)));
        self
    }

    /// Creates the response of a query that shows this body at a version.
    pub(crate) fn from_view(version: u64, body: Value) -> Self {
        Self::json(StatusCode::OK, body).with_representation(version)
    }

    /// Adds the ETag of this body at a version to the response. The version alone does not identify
    /// a representation: a rebuilt view may show another body at the same version, and each page of
    /// a list is a representation of its own.
    #[must_use]
    pub(crate) fn with_representation(mut self, version: u64) -> Self {
        let body = self.body.as_ref().map(Value::to_string).unwrap_or_default();
        let hash = Sha256::digest(body.as_bytes());
        let digits: String = hash.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
        self.headers.push((header::ETAG, format!("\"{version}.{digits}\"")));
        self
    }

    /// The response's ETag.
    pub(crate) fn etag(&self) -> Option<&str> {
        self.headers.iter().find(|(name, _)| *name == header::ETAG).map(|(_, tag)| tag.as_str())
    }

    /// The version in the ETag.
    pub(crate) fn version(&self) -> Option<u64> {
        parse_etags(self.etag()?)?.first().copied()
    }

    pub(super) fn into_lambda(self) -> ApiGatewayV2httpResponse {
        let mut response = ApiGatewayV2httpResponse::default();
        response.status_code = i64::from(self.status.as_u16());
        // An answer is for one caller. Where the API adds the caller's origin, the answer differs
        // by origin.
        for (name, value) in [(header::CACHE_CONTROL, "no-store"), (header::VARY, "Origin")] {
            response.headers.insert(name, HeaderValue::from_static(value));
        }
        for (name, value) in self.headers {
            if let Ok(value) = HeaderValue::try_from(value) {
                response.headers.insert(name, value);
            }
        }
        if let Some(body) = self.body {
            let json = HeaderValue::from_static("application/json");
            response.headers.entry(header::CONTENT_TYPE).or_insert(json);
            response.body = Some(body.to_string().into());
        }
        response
    }
}

impl From<Problem> for Response {
    fn from(problem: Problem) -> Self {
        let mut response = Self::json(problem.status, problem.body());
        response.headers.push((header::CONTENT_TYPE, "application/problem+json".into()));
        let again =
            [UNAVAILABLE.code, READ_MODEL_BEHIND.code, TOO_MANY_REQUESTS.code, CONTENDED.code];
        if again.contains(&problem.code) {
            response.headers.push((header::RETRY_AFTER, "1".into()));
        }
        if problem.status == StatusCode::UNAUTHORIZED {
            response.headers.push((header::WWW_AUTHENTICATE, "Bearer".into()));
        }
        if let Some(version) = problem.version {
            response = response.with_version(version);
        }
        response
    }
}

/// The entity tag of a version: `"3"`.
pub(crate) fn etag(version: u64) -> String {
    format!("\"{version}\"")
}

/// Reads the versions in a list of entity tags (RFC 9110, 8.8.3): `"3"`, as in responses to
/// commands, and `"3.9f86d081"`, as in responses to reads. Returns `None` for `*`. The comparison
/// is strong (13.1.1): weak tags, and tags that are not a version, are left out, because they match
/// nothing.
pub(crate) fn parse_etags(tags: &str) -> Option<Vec<u64>> {
    if tags.trim() == "*" {
        return None;
    }
    let versions = tags.split(',').filter_map(|tag| {
        let tag = tag.trim().strip_prefix('"')?.strip_suffix('"')?;
        let digits = match tag.split_once('.') {
            Some((digits, hash)) if is_hash(hash) => digits,
            Some(_) => return None,
            None => tag,
        };
        // Each version has one spelling: "3", not "03" or "+3".
        digits.parse::<u64>().ok().filter(|version| version.to_string() == digits)
    });
    Some(versions.collect())
}

/// Reads the versions for a weak comparison (RFC 9110, 13.1.2): `W/"3"` is the same as `"3"`.
///
/// # Errors
/// When the text is no list of entity tags. A condition that cannot be read must not be dropped.
pub(crate) fn parse_weak_etags(tags: &str) -> Result<Option<Vec<u64>>, Problem> {
    let tags: Vec<_> = tags.split(',').map(|tag| tag.trim().trim_start_matches("W/")).collect();
    let is_tag = |tag: &&str| tag.len() >= 2 && tag.starts_with('"') && tag.ends_with('"');
    if tags != ["*"] && !tags.iter().all(is_tag) {
        let detail = "If-None-Match is a list of ETags, such as \"3\", or *";
        return Err(Problem::field("If-None-Match", detail));
    }
    Ok(parse_etags(&tags.join(",")))
}

/// Whether the text is the hash of a representation.
fn is_hash(text: &str) -> bool {
    text.len() == 8 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Whether one of these entity tags equals this one in a weak comparison (RFC 9110, 13.1.2):
/// `W/"3.9f86d081"` is the same as `"3.9f86d081"`.
pub(crate) fn is_among_tags(etag: &str, tags: &str) -> bool {
    tags.trim() == "*" || tags.split(',').any(|tag| tag.trim().trim_start_matches("W/") == etag)
}
