//! Requests of the HTTP API.

use std::{
    cell::{Cell, OnceCell},
    collections::{BTreeSet, HashMap},
    fmt::Display,
    ops::RangeInclusive,
    str::FromStr,
};

use aws_lambda_events::apigw::ApiGatewayV2httpRequest;
use base64::{Engine, prelude::BASE64_STANDARD};
use http::HeaderValue;
use ledgerline::{Meta, url_text::decode_query};
use serde::{Deserialize, de::DeserializeOwned};

use super::problem::*;
use crate::{function_url::principal, messages::field_of};

/// The largest body that a command may have, in bytes, unless its route allows more
/// ([`Route::allow_request_body`](crate::commands::Route::allow_request_body)).
pub const MAX_BODY_BYTES: usize = 64 * 1024;

/// The longest subject that a token may have, in bytes (OpenID Connect Core, 2). The subject
/// becomes part of keys.
const MAX_SUBJECT: usize = 255;

/// A request that the HTTP API passes on. Caller, origin and query are read once, for all their
/// users. The body is decoded at its first use: a request that is refused earlier costs no
/// decoding.
#[derive(Debug)]
pub struct HttpRequest {
    event: ApiGatewayV2httpRequest,
    caller: Option<String>,
    meta: Meta,
    query: Result<Vec<(String, String)>, Problem>,
    body: OnceCell<Result<Vec<u8>, Problem>>,
    /// The most bytes of the body.
    body_limit: Cell<usize>,
}

impl From<ApiGatewayV2httpRequest> for HttpRequest {
    fn from(event: ApiGatewayV2httpRequest) -> Self {
        let caller = caller(&event);
        let meta = meta(&event, caller.clone());
        // The API joins repeated parameters with commas, which look the same as commas in a value.
        let query = decode_query(event.raw_query_string.as_deref().unwrap_or_default());
        let query = query.map_err(|part| {
            let field = part.0.split('=').next().map(ToOwned::to_owned);
            Problem { field, ..part.into() }
        });
        let body_limit = Cell::new(MAX_BODY_BYTES);
        Self { event, caller, meta, query, body: OnceCell::new(), body_limit }
    }
}

/// Decodes a body of at most `limit` bytes.
fn bytes(text: &str, is_base64: bool, limit: usize) -> Result<Vec<u8>, Problem> {
    let body = if is_base64 {
        let decoded = BASE64_STANDARD.decode(text);
        decoded.map_err(|_| Problem::new(INVALID_REQUEST, "the body is not base64"))?
    } else {
        text.as_bytes().to_vec()
    };
    if body.len() > limit {
        let detail = format!("the body has {} bytes, the limit is {limit}", body.len());
        return Err(Problem::new(BODY_TOO_LARGE, detail));
    }
    Ok(body)
}

/// Reads the caller: the subject of the token, which the API's authorizer has verified, or the
/// principal that signed a request to a function URL.
fn caller(event: &ApiGatewayV2httpRequest) -> Option<String> {
    let authorizer = event.request_context.authorizer.as_ref()?;
    let of_token =
        authorizer.jwt.as_ref().and_then(|jwt| jwt.claims.get("sub").map(String::as_str));
    let of_iam = || authorizer.iam.as_ref()?.user_arn.as_deref().map(principal);
    let caller = of_token.or_else(of_iam)?;
    (1..=MAX_SUBJECT).contains(&caller.len()).then(|| caller.to_owned())
}

fn meta(event: &ApiGatewayV2httpRequest, actor: Option<String>) -> Meta {
    let context = &event.request_context;
    // The client chooses this header, so its value is used only if it is harmless in a log and in
    // an item.
    let is_harmless =
        |id: &&str| (1..=128).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_graphic());
    let header = |name| event.headers.get(name).and_then(|value| value.to_str().ok());
    let given = header("x-correlation-id").filter(is_harmless).map(ToOwned::to_owned);
    Meta {
        actor,
        correlation_id: given.or_else(|| context.request_id.clone()),
        causation_id: None,
        source_address: context.http.source_ip.clone(),
        trace_id: header("x-amzn-trace-id").and_then(trace),
    }
}

impl HttpRequest {
    /// The method and the path of the route, as the template has them: `POST /tanks/{id}/fills`.
    pub fn route(&self) -> &str {
        self.event
            .route_key
            .as_deref()
            .or(self.event.request_context.route_key.as_deref())
            .unwrap_or_default()
    }

    /// The `{parameters}` of the path, decoded.
    pub(crate) fn path_parameters(&self) -> &HashMap<String, String> {
        &self.event.path_parameters
    }

    /// Returns a `{parameter}` of the path, decoded.
    ///
    /// # Errors
    /// When the route has no parameter of this name.
    pub fn path_parameter(&self, name: &str) -> Result<&str, Problem> {
        let parameter = self.event.path_parameters.get(name).map(String::as_str);
        parameter.ok_or_else(|| Problem::field(name, format!("the path has no {name}")))
    }

    /// Returns a `{parameter}` of the path, as a value object.
    ///
    /// # Errors
    /// When the rule of the value does not allow it.
    pub fn path_value<V: FromStr<Err: Display>>(&self, name: &str) -> Result<V, Problem> {
        let value = self.path_parameter(name)?.parse();
        value.map_err(|error: V::Err| Problem::field(name, error.to_string()))
    }

    /// Returns the parameters of the query.
    fn parameters(&self) -> Result<&[(String, String)], Problem> {
        self.query.as_deref().map_err(Problem::clone)
    }

    /// Returns a parameter of the query.
    ///
    /// # Errors
    /// When the parameter is given twice, or the query is no text.
    pub fn query(&self, name: &str) -> Result<Option<String>, Problem> {
        let mut values = self.parameters()?.iter().filter(|(key, _)| key == name);
        match (values.next(), values.next()) {
            (_, Some(_)) => Err(Problem::field(name, format!("`{name}` is given twice"))),
            (value, None) => Ok(value.map(|(_, value)| value.clone())),
        }
    }

    /// Refuses every parameter of the query but these, and more than one value of those in `once`.
    /// A misspelled name, such as `minversion`, would have no effect. A route may refuse a request
    /// before it reads its parameters, and the response would not name the wrong one.
    ///
    /// # Errors
    /// When there is another parameter, one is given twice, or one is no text. The problem names
    /// it.
    pub(crate) fn check_parameters(&self, once: &[&str], several: &[&str]) -> Result<(), Problem> {
        let mut found = BTreeSet::new();
        for (name, _) in self.parameters()? {
            if several.contains(&&**name) {
                continue;
            }
            if !once.contains(&&**name) {
                let detail = match [once, several].concat().as_slice() {
                    [] => "the route has no parameters".to_owned(),
                    known => format!("there is no such parameter; there are: {}", known.join(", ")),
                };
                return Err(Problem::field(name, detail));
            }
            if !found.insert(name) {
                return Err(Problem::field(name, format!("`{name}` is given twice")));
            }
        }
        Ok(())
    }

    /// Returns a parameter of the query as a value in its one spelling. `expected` describes the
    /// value.
    ///
    /// # Errors
    /// When the parameter is given twice, cannot be read, or has another spelling than the value is
    /// written in. A part that the parser drops, such as the offset after a date, would have no
    /// effect.
    pub fn query_value<V: FromStr + Display>(
        &self,
        name: &str,
        expected: &str,
    ) -> Result<Option<V>, Problem> {
        let Some(text) = self.query(name)? else { return Ok(None) };
        let value = text.parse::<V>().ok().filter(|value| value.to_string() == text);
        value.map(Some).ok_or_else(|| Problem::field(name, expected))
    }

    /// Returns a parameter of the query that is a whole number.
    ///
    /// # Errors
    /// When the parameter is given twice, is no number, or is not in the range.
    pub(crate) fn query_number<N: FromStr + PartialOrd + Display>(
        &self,
        name: &str,
        range: RangeInclusive<N>,
    ) -> Result<Option<N>, Problem> {
        let expected =
            format!("{name} is a whole number from {} to {}", range.start(), range.end());
        match self.query_value::<N>(name, &expected)? {
            Some(number) if !range.contains(&number) => Err(Problem::field(name, expected)),
            number => Ok(number),
        }
    }

    /// Returns all values of a parameter of the query, which may be given several times.
    pub(crate) fn query_values(&self, name: &str) -> Result<BTreeSet<String>, Problem> {
        let values = self.parameters()?.iter().filter(|(key, _)| key == name);
        Ok(values.map(|(_, value)| value.clone()).collect())
    }

    /// Returns a header, if the request has it.
    ///
    /// # Errors
    /// When the header is not ASCII text. If it were ignored, the service would act against the
    /// request: it would execute a command with a key twice, or a command with a condition without
    /// it.
    pub fn header(&self, name: &str) -> Result<Option<&str>, Problem> {
        let value = self.event.headers.get(name).map(HeaderValue::to_str).transpose();
        value.map_err(|_| {
            Problem::field(name, format!("the header {name} has characters outside ASCII"))
        })
    }

    /// Sets the largest body, in bytes. The first use of the body keeps its result.
    pub(crate) fn limit_body(&self, bytes: usize) {
        self.body_limit.set(bytes);
    }

    /// Returns the body.
    pub(crate) fn body(&self) -> Result<&[u8], Problem> {
        let text = self.event.body.as_deref().unwrap_or_default();
        let body = self
            .body
            .get_or_init(|| bytes(text, self.event.is_base64_encoded, self.body_limit.get()));
        body.as_deref().map_err(Problem::clone)
    }

    /// Reads the body as JSON of this shape.
    ///
    /// # Errors
    /// A problem that names the field.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Problem> {
        let body = self.body()?;
        let malformed = |detail: String| Problem::new(INVALID_REQUEST, detail);
        if body.is_empty() {
            return Err(malformed("the body is missing: send a JSON object".into()));
        }
        if body.trim_ascii_start().first() != Some(&b'{') {
            // Serde would read the fields of a struct from an array as well, by their place.
            return Err(malformed("the body is not a JSON object".into()));
        }
        let mut reader = serde_json::Deserializer::from_slice(body);
        let value: T = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
            let field = field_of(&error);
            let inner = error.into_inner();
            if inner.is_data() {
                // The line and the column are left out: the field's name shows where the error is,
                // and people do not count columns.
                let message = inner.to_string();
                let detail =
                    message.rsplit_once(" at line ").map_or(message.as_str(), |(detail, _)| detail);
                Problem { field, ..malformed(detail.to_owned()) }
            } else {
                malformed(format!("the body is not JSON: {inner}"))
            }
        })?;
        reader.end().map_err(|error| malformed(format!("the body is not JSON: {error}")))?;
        Ok(value)
    }

    /// Checks that the request has no fields: the body is missing or an empty object.
    ///
    /// # Errors
    /// A problem that names a field of the body.
    pub(crate) fn check_no_body(&self) -> Result<(), Problem> {
        if self.body()?.is_empty() {
            return Ok(());
        }
        self.json().map(|Nothing {}| ())
    }

    /// Returns the caller: the subject of the token, which the API's authorizer has verified, or
    /// the principal that signed a request to a function URL.
    ///
    /// # Errors
    /// `401` when there is no caller: the API has no authorizer, or the caller's name is missing or
    /// very long. An aggregate belongs to its creator, so it must not be created without a caller.
    pub fn actor(&self) -> Result<&str, Problem> {
        let caller = self.caller.as_deref();
        caller.ok_or_else(|| Problem::new(UNAUTHENTICATED, "sign in: the request names no caller"))
    }

    /// Returns a claim of the caller's token, as text.
    pub(crate) fn claim(&self, name: &str) -> Option<&str> {
        let authorizer = self.event.request_context.authorizer.as_ref()?;
        authorizer.jwt.as_ref()?.claims.get(name).map(String::as_str)
    }

    /// Returns the origin of the request, for the commit that it causes.
    pub fn meta(&self) -> &Meta {
        &self.meta
    }
}

/// Reads the trace from a header: `Root=1-`, the time in 8 hexadecimal digits, `-`, and 24 more
/// digits. Clients choose the content of this header, and the trace becomes part of every commit,
/// so any other form is dropped. Source: the developer guide of X-Ray, "Tracing header".
pub(super) fn trace(header: &str) -> Option<String> {
    let root = header.split(';').map(str::trim).find(|part| part.starts_with("Root="))?;
    let hexadecimal =
        |text: &str, digits| text.len() == digits && text.bytes().all(|b| b.is_ascii_hexdigit());
    let (time, id) = root.strip_prefix("Root=1-")?.split_once('-')?;
    (hexadecimal(time, 8) && hexadecimal(id, 24)).then(|| root.to_owned())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}
