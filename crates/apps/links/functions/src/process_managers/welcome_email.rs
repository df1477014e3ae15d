//! Welcomes a new user with a mail: at most one, whatever comes twice.
//!
//! Before a mail is sent, the table says that it is about to be: who finds that, and not that it was sent, cannot know
//! whether it was, because the provider (SES) knows no request ids of ours. It is not sent again then; an alarm tells
//! somebody, and the user's stream goes on. docs/mails.md says how far that goes.

use std::time::Duration;

use aws_config::SdkConfig;
use aws_sdk_sesv2::{
    Client,
    config::{Builder, retry::RetryConfig, timeout::TimeoutConfig},
    error::SdkError,
    operation::send_email::SendEmailError,
    types::{Body, Content, Destination, EmailContent, Message},
};
use ledgerline::{Aggregate, Commit, decode};
use ledgerline_dynamodb::ReadTable;
use ledgerline_lambda::{
    fifo::ApplyError,
    metrics,
    needs::{Action, Needs, Table},
    process_manager::{POSITIONS, Reaction},
};
use links::user::{Event, User};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Counted when a mail was refused, or when nobody knows of it: the alarm of this name tells somebody.
const UNSENT_MAILS: &str = "UnsentMails";

/// How long the provider has to answer. It is asked once: what was sent and not heard of cannot be sent again.
const PATIENCE: Duration = Duration::from_secs(5);

/// A mail, before it is sent and after.
#[derive(Debug, Serialize, Deserialize)]
struct Mail {
    stream: String,
    entry: String,
    status: Status,
    /// Who is sending it: tells one's own claim, whose answer was lost, from another's.
    claim: Uuid,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Status {
    /// Whether it was sent is known only to who is sending it.
    Sending,
    /// The provider took it.
    Sent,
    /// The provider will never take it.
    Refused,
    /// Nobody knows whether it was sent.
    Unknown,
}

/// Sends the mails.
#[derive(Debug)]
pub struct WelcomeEmail {
    /// Which mails were sent: the process manager's own table.
    pub mails: ReadTable,
    /// The provider.
    pub ses: Client,
    /// Where mails come from, a verified identity; without one, none is sent.
    pub sender: Option<String>,
}

/// A client that asks once, and waits for the answer: a reply that was lost is a mail that was sent.
#[must_use]
pub fn ses(sdk: &SdkConfig) -> Builder {
    // Both: an attempt would else have the time that is enough for a database.
    let timeout = TimeoutConfig::builder().operation_attempt_timeout(PATIENCE).operation_timeout(PATIENCE);
    Builder::from(sdk).retry_config(RetryConfig::disabled()).timeout_config(timeout.build())
}

impl Reaction for WelcomeEmail {
    const OF: &'static [&'static str] = &[User::CATEGORY];

    fn needs(needs: Needs) -> Needs {
        // Which mails were sent is written beside the positions.
        needs
            .table(Table::with(POSITIONS, [Action::BatchWriteItem, Action::DeleteItem]))
            .call("ses:SendEmail", "MAIL_SENDER")
            .metric(UNSENT_MAILS)
    }

    async fn react(&self, commit: &Commit) -> Result<(), ApplyError> {
        for (index, recorded) in commit.events.iter().enumerate() {
            let event = decode::<User>(recorded).map_err(|source| ApplyError::changes(commit, source))?;
            match (event, &self.sender) {
                (Event::UserRegistered { email, name: _, user_id: _ }, Some(sender)) => {
                    self.once(commit, index, sender, &email).await?;
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
    async fn once(&self, commit: &Commit, index: usize, sender: &str, email: &str) -> Result<(), ApplyError> {
        let (stream, claim) = (commit.stream.as_str(), Uuid::new_v4());
        let entry = format!("mail#{:020}#{index:04}", commit.version);
        let mail = |status| Mail { stream: stream.to_owned(), entry: entry.clone(), status, claim };
        if !self.mails.put_new(&POSITIONS, &mail(Status::Sending)).await? {
            let found = self.mails.read::<Mail>(&POSITIONS, stream, &entry).await?;
            match found.map(|found| (found.status, found.claim == claim)) {
                // Our own claim, whose answer was lost: nobody else sends it.
                Some((Status::Sending, true)) => {}
                Some((Status::Sending, false)) => {
                    self.mails.put_all(&[mail(Status::Unknown)]).await?;
                    unsent(commit, "unknown", "the function ended");
                    return Ok(());
                }
                Some((Status::Sent | Status::Refused | Status::Unknown, _)) => return Ok(()),
                // Taken back meanwhile, by another instance.
                None => return Err(ApplyError::Effect("another instance has the mail".into())),
            }
        }
        let error = match self.send(sender, email).await {
            Ok(()) => {
                self.mails.put_all(&[mail(Status::Sent)]).await?;
                tracing::info!(stream, version = commit.version, "a mail was sent");
                return Ok(());
            }
            Err(error) => error,
        };
        // Rule 14: the provider's code, not its words, which may quote the address.
        let code = error.as_service_error().and_then(|error| error.meta().code()).unwrap_or("no answer");
        match meaning(&error) {
            Meaning::Later => {
                // Under our claim only: should this request arrive late, another instance may have sent the mail, and its record must stay.
                self.mails.delete_if(&POSITIONS, (stream, &entry), ("claim", &claim.to_string())).await?;
                Err(ApplyError::Effect(format!("the mail was not taken yet: {code}")))
            }
            Meaning::Never => {
                self.mails.put_all(&[mail(Status::Refused)]).await?;
                unsent(commit, "refused", code);
                Ok(())
            }
            Meaning::Unknown => {
                self.mails.put_all(&[mail(Status::Unknown)]).await?;
                unsent(commit, "unknown", code);
                Ok(())
            }
        }
    }

    /// The same words for everybody: what a user typed goes to an address that nobody has verified.
    async fn send(&self, sender: &str, email: &str) -> Result<(), SdkError<SendEmailError>> {
        let text = |data: &str| Content::builder().data(data).charset("UTF-8").build();
        let body = "Hello,\n\nyou can rate links now, and follow others to see what they rate.\n";
        let message = Message::builder()
            .subject(text("Welcome")?)
            .body(Body::builder().text(text(body)?).build())
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

/// An alarm is on this.
fn unsent(commit: &Commit, outcome: &str, code: &str) {
    tracing::error!(stream = %commit.stream, version = commit.version, outcome, code, "a mail was not sent, as far as is known");
    metrics::count(UNSENT_MAILS);
}

/// What an error of the provider means.
enum Meaning {
    /// It asks to come back.
    Later,
    /// It will say the same next time.
    Never,
    /// The mail may have been taken all the same.
    Unknown,
}

#[expect(clippy::wildcard_enum_match_arm, reason = "whatever the SDK may learn, it is no refusal")]
fn meaning(error: &SdkError<SendEmailError>) -> Meaning {
    match error {
        SdkError::ConstructionFailure(_) => Meaning::Never,
        SdkError::ServiceError(refused) => match refused.err() {
            SendEmailError::TooManyRequestsException(_)
            | SendEmailError::LimitExceededException(_)
            | SendEmailError::SendingPausedException(_) => Meaning::Later,
            // 401 and 403 are mistakes in credentials or policies, which somebody mends: the mail itself was not looked at.
            _ if matches!(refused.raw().status().as_u16(), 401 | 403 | 429) => Meaning::Later,
            _ if refused.raw().status().is_client_error() => Meaning::Never,
            _ => Meaning::Unknown,
        },
        _ => Meaning::Unknown,
    }
}
