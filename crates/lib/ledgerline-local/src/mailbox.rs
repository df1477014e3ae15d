//! The emulated SES. It accepts mails as version 2 of the SES API does, and stores them, so that
//! developers and tests can read them.
//!
//! Source: the SES API v2 reference, `SendEmail` with simple content.

use std::sync::{Mutex, PoisonError};

use axum::{Json, body::Body, http::Response};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

/// The maximum number of stored mails. The newest mails stay.
const KEPT: usize = 1_000;

/// The sent mails, oldest first.
#[derive(Debug, Default)]
pub struct Mailbox(Mutex<Vec<Mail>>);

/// A stored mail.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct Mail {
    message_id: Uuid,
    at: Timestamp,
    from: String,
    to: Vec<String>,
    subject: String,
    text: String,
}

/// A `SendEmail` request.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct SendEmail {
    from_email_address: String,
    destination: Destination,
    content: Content,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Destination {
    #[serde(default)]
    to_addresses: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Content {
    simple: Simple,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Simple {
    subject: Text,
    body: Texts,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Texts {
    text: Text,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Text {
    data: String,
}

impl Mailbox {
    /// Stores a mail, and answers as SES does: 200 with the mail's `MessageId`.
    pub fn send(
        &self,
        SendEmail { from_email_address, destination, content }: SendEmail,
    ) -> Response<Body> {
        let mail = Mail {
            message_id: Uuid::now_v7(),
            at: Timestamp::now(),
            from: from_email_address,
            to: destination.to_addresses,
            subject: content.simple.subject.data,
            text: content.simple.body.text.data,
        };
        let answer = json!({ "MessageId": mail.message_id });
        let mut mails = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        mails.push(mail);
        let over = mails.len().saturating_sub(KEPT);
        mails.drain(..over);
        Response::new(Body::from(answer.to_string()))
    }

    /// Returns all mails, or those to one address, oldest first: `{"mails": [{"messageId", "at",
    /// "from", "to", "subject", "text"}]}`.
    pub fn mails(&self, to: Option<&str>) -> Json<Value> {
        let mails = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = |mail: &&Mail| to.is_none_or(|to| mail.to.iter().any(|address| address == to));
        Json(json!({ "mails": mails.iter().filter(wanted).collect::<Vec<_>>() }))
    }
}
