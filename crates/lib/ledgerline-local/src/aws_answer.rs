//! The form of answers of emulated services.

use axum::{
    body::Body,
    http::{HeaderValue, Response, StatusCode},
};

/// Returns an answer with a JSON body.
pub(crate) fn answer(status: StatusCode, body: serde_json::Value) -> Response<Body> {
    let mut response = Response::new(Body::from(body.to_string()));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert("content-type", HeaderValue::from_static("application/x-amz-json-1.0"));
    response
}
