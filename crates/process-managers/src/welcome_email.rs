//! Welcomes a new user with a mail: at most one, whatever comes twice.
//!
//! Before a mail is sent, the table says that it is about to be: who finds that, and not that it was sent, cannot know
//! whether it was, because the provider (SES) knows no request ids of ours. It is not sent again then; the message goes
//! to the dead-letter queue, and somebody looks. docs/mails.md says how far that goes.

use aws_sdk_sesv2::{
    Client,
    error::SdkError,
    operation::send_email::SendEmailError,
    types::{Body, Content, Destination, EmailContent, Message},
};
use decider::decode;
use domain::user::{Event, User};
use event_store::Commit;
use lambda_kit::{
    fifo::ApplyError,
    process_manager::{POSITIONS, Reaction},
};
use read_models_dynamodb::ReadTable;
use serde::{Deserialize, Serialize};

/// A mail, before it is sent and after.
#[derive(Debug, Serialize, Deserialize)]
struct Mail {
    stream: String,
    entry: String,
    status: Status,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Status {
    /// Whether it was sent is known only to who is sending it.
    Sending,
    /// The provider took it.
    Sent,
}

/// Sends the mails.
#[derive(Debug)]
pub struct WelcomeEmail {
    /// Which mails were sent: the process manager's own table.
    pub mails: ReadTable,
    /// The provider. Its client must not try again by itself: a reply that was lost is a mail that was sent.
    pub ses: Client,
    /// Where mails come from, a verified identity; without one, none is sent.
    pub sender: Option<String>,
}

impl Reaction for WelcomeEmail {
    async fn react(&self, commit: &Commit) -> Result<(), ApplyError> {
        for (index, recorded) in commit.events.iter().enumerate() {
            let event = decode::<User>(recorded).map_err(|source| ApplyError::decode(commit, source))?;
            match (event, &self.sender) {
                (Event::UserRegistered { name, email, user_id: _ }, Some(sender)) => {
                    self.once(commit, index, sender, &name, &email).await?;
                }
                (Event::UserRegistered { .. }, None) => {
                    tracing::warn!(stream = %commit.stream, version = commit.version, "no MAIL_SENDER: no mail");
                }
                (
                    Event::UserEmailUpdated { .. }
                    | Event::UserFollowed { .. }
                    | Event::UserUnfollowed { .. },
                    _,
                ) => {}
            }
        }
        Ok(())
    }
}

impl WelcomeEmail {
    /// Sends the mail for one event, unless it was sent, or may have been.
    async fn once(
        &self,
        commit: &Commit,
        index: usize,
        sender: &str,
        name: &str,
        email: &str,
    ) -> Result<(), ApplyError> {
        let entry = format!("mail#{:020}#{index:04}", commit.version);
        let mail = |status| Mail { stream: commit.stream.to_string(), entry: entry.clone(), status };
        let key = [(POSITIONS.partition, commit.stream.as_str()), (POSITIONS.sort, entry.as_str())];
        if !self.mails.put_new(&POSITIONS, &mail(Status::Sending)).await? {
            return match self.mails.get::<Mail>(&key).await? {
                Some(Mail { status: Status::Sent, .. }) => Ok(()),
                _ => Err(ApplyError::Effect(format!(
                    "whether the mail of version {} of {} was sent is not known: see docs/mails.md",
                    commit.version, commit.stream
                ))),
            };
        }
        match self.send(sender, name, email).await {
            Ok(()) => {
                self.mails.put_all(&[mail(Status::Sent)]).await?;
                tracing::info!(stream = %commit.stream, version = commit.version, "a mail was sent");
                Ok(())
            }
            // Rule 14: not the provider's words, which may quote the address.
            Err(error) if was_refused(&error) => {
                self.mails.delete_all(&POSITIONS, &[(commit.stream.to_string(), entry)]).await?;
                let code =
                    error.as_service_error().and_then(|error| error.meta().code()).unwrap_or("no reason");
                Err(ApplyError::Effect(format!("the mail was refused: {code}")))
            }
            Err(_) => Err(ApplyError::Effect("whether the mail was sent is not known".into())),
        }
    }

    async fn send(&self, sender: &str, name: &str, email: &str) -> Result<(), SdkError<SendEmailError>> {
        let text = |data: String| Content::builder().data(data).charset("UTF-8").build();
        let message = Message::builder()
            .subject(text(format!("Welcome, {name}"))?)
            .body(
                Body::builder()
                    .text(text(format!(
                        "Hello {name},\n\nyou can rate links now, and follow others to see what they rate.\n"
                    ))?)
                    .build(),
            )
            .build();
        self.ses
            .send_email()
            .from_email_address(sender)
            .destination(Destination::builder().to_addresses(email).build())
            .content(EmailContent::builder().simple(message).build())
            .send()
            .await
            .map(|_| ())
    }
}

/// Whether the provider said no. Everything else, a failure on its side among that, may have come after the mail was
/// taken.
#[expect(clippy::wildcard_enum_match_arm, reason = "whatever the SDK may learn, it is no refusal")]
fn was_refused(error: &SdkError<SendEmailError>) -> bool {
    match error {
        SdkError::ConstructionFailure(_) => true,
        SdkError::ServiceError(refused) => refused.raw().status().is_client_error(),
        _ => false,
    }
}
