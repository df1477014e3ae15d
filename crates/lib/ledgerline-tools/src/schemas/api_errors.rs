//! The schemas of the bodies with which the HTTP API refuses a request.

use serde_json::{Value, json};

pub(super) fn problem() -> Value {
    json!({
        "type": "object",
        "description": "An error (RFC 9457).",
        "properties": {
            "type": { "type": "string", "description": "The kind of problem. It is stable." },
            "title": { "type": "string" },
            "status": { "type": "integer" },
            "detail": { "type": "string", "description": "This occurrence, for people." },
            "field": { "type": "string", "description": "The wrong field, parameter or header." },
            "version": {
                "type": "integer",
                "description": "The version of the aggregate, if the request expected another one.",
            },
        },
        "required": ["type", "title", "status", "detail"],
    })
}

pub(super) fn gateway_message() -> Value {
    json!({
        "type": "object",
        "description": "An error of API Gateway itself.",
        "properties": { "message": { "type": ["string", "null"] } },
        "required": ["message"],
    })
}
