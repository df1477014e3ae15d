//! Welcomes a new user with a mail: at most one, even if the commit is delivered twice.
//!
//! Before it sends a mail, an instance claims it in the table. Another instance leaves the mail
//! alone for a minute. After that, the instance with the claim is gone. Whether the mail was sent
//! is unknown, because the provider (SES) accepts no request ids of the sender. The mail is not
//! sent again, an alarm notifies an operator, and the user's stream continues. A second mail cannot
//! be undone, and an operator can send a missing one. docs/mails.md describes each case.

use std::time::Duration;

use aws_config::SdkConfig;
use aws_sdk_sesv2::{
    Client,
    config::{Builder, retry::RetryConfig, timeout::TimeoutConfig},
    error::SdkError,
    operation::send_email::SendEmailError,
    types::{Body, Content, Destination, EmailContent, Message},
};
use jiff::{SignedDuration, Timestamp};
use ledgerline::{
    Aggregate, Commit, decode,
    manifest::{Action, Manifest, Table},
};
use ledgerline_dynamodb::{LogRows, RowKey};
use ledgerline_lambda::{
    Error, config, metrics,
    process_manager::{self, POSITIONS, Reaction},
    queue::ApplyError,
};
use links::user::{Event, User};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The counter of mails that were refused, or were possibly not sent. The alarm of this name
/// notifies an operator.
const UNSENT_MAILS: &str = "UnsentMails";

/// The time that the provider has to answer. The client makes one attempt, because a request
/// without a response may have sent the mail.
const PATIENCE: Duration = Duration::from_secs(5);

/// The time after which an instance with a claim is gone: the timeout of the function is ten
/// seconds, and clocks may differ.
pub const CLAIM: SignedDuration = SignedDuration::from_secs(60);

/// A mail, before and after it is sent.
#[derive(Debug, Serialize, Deserialize)]
struct Mail {
    stream: String,
    entry: String,
    status: Status,
    /// The id of the attempt that sends the mail. It distinguishes this attempt's claim, whose
    /// response was lost, from the claim of another attempt.
    claim: Uuid,
    /// The time of the claim.
    at: Timestamp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Status {
    /// The mail is being sent. Only the instance that sends it learns the result.
    Sending,
    /// The provider accepted the mail.
    Sent,
    /// The provider will never accept the mail.
    Refused,
    /// The mail may or may not have been sent.
    Unknown,
}

/// Sends the mails.
#[derive(Debug)]
pub struct WelcomeEmail {
    /// The table with the sent mails: that of the process manager's positions.
    pub mails: LogRows,
    /// The provider.
    pub ses: Client,
    /// The time for which another instance may still be sending a mail that it has claimed:
    /// [`CLAIM`].
    pub claim: SignedDuration,
    /// The address from which mails are sent, a verified identity. Without one, no mail is sent.
    pub sender: Option<String>,
}

/// Returns the configuration of a client that makes one attempt and waits for the response: a retry
/// after a lost response would send a second mail.
#[must_use]
pub fn ses(sdk: &SdkConfig) -> Builder {
    // Both timeouts are set. Otherwise an attempt would have only the time that suffices for a
    // database.
    let timeout =
        TimeoutConfig::builder().operation_attempt_timeout(PATIENCE).operation_timeout(PATIENCE);
    Builder::from(sdk).retry_config(RetryConfig::disabled()).timeout_config(timeout.build())
}

/// Runs the function.
///
/// # Errors
/// When it cannot start.
pub async fn run() -> Result<(), Error> {
    process_manager::run_on_bus::<_, User>(async |sdk, _| {
        let sender = config::parse_or("MAIL_SENDER", String::new())?;
        let mails = LogRows::new(
            aws_sdk_dynamodb::Client::new(&sdk),
            config::text(POSITIONS.variable)?,
            POSITIONS,
        );
        let ses = Client::from_conf(ses(&sdk).build());
        Ok(WelcomeEmail {
            mails,
            ses,
            claim: CLAIM,
            sender: Some(sender).filter(|sender| !sender.is_empty()),
        })
    })
    .await
}

impl Reaction for WelcomeEmail {
    const OF: &'static [&'static str] = &[User::CATEGORY];

    fn manifest(manifest: Manifest) -> Manifest {
        // The records of the mails are written next to the positions.
        manifest
            .table(Table::grant(POSITIONS, [Action::BatchWriteItem, Action::DeleteItem]))
            .call("ses:SendEmail", "MAIL_SENDER")
            .metric(UNSENT_MAILS)
    }

    async fn react(&self, commit: &Commit) -> Result<(), ApplyError> {
        for (index, recorded) in commit.events.iter().enumerate() {
            let event =
                decode::<User>(recorded).map_err(|source| ApplyError::changes(commit, source))?;
            match (event, &self.sender) {
                (Event::UserRegistered { email, name: _, user_id: _ }, Some(sender)) => {
                    self.send_once(commit, index, sender, &email).await?;
                }
                (Event::UserRegistered { .. }, None) => {
                    tracing::warn!(stream = %commit.stream, version = commit.version, "MAIL_SENDER is not set, so no mail is sent");
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

fn claimed_elsewhere() -> ApplyError {
    ApplyError::Effect("another instance is sending the mail".into())
}

impl WelcomeEmail {
    /// Claims a mail, and returns whether this attempt sends it.
    async fn claim_mail(
        &self,
        commit: &Commit,
        mail: impl Fn(Status) -> Mail,
    ) -> Result<bool, ApplyError> {
        let claimed = mail(Status::Sending);
        if self.mails.put_new(&claimed).await? {
            return Ok(true);
        }
        let key = RowKey { partition: &claimed.stream, sort: &claimed.entry };
        // Another instance had a claim, and has deleted it meanwhile.
        let Some(found) = self.mails.read::<Mail>(key).await? else {
            return Err(claimed_elsewhere());
        };
        match found.status {
            // This is the claim of this attempt, and only its response was lost: no other instance
            // sends the mail.
            Status::Sending if found.claim == claimed.claim => Ok(true),
            // Two instances may have the same commit at the same time. The one with the claim
            // decides, as long as it can still be running.
            Status::Sending if Timestamp::now() < found.at + self.claim => Err(claimed_elsewhere()),
            Status::Sending => {
                if self.mails.replace_if(&mail(Status::Unknown), "status", "sending").await? {
                    count_unsent(commit, "unknown", "the function crashed");
                }
                Ok(false)
            }
            Status::Sent | Status::Refused | Status::Unknown => Ok(false),
        }
    }

    /// Sends the mail for one event, unless it was sent, or may have been.
    async fn send_once(
        &self,
        commit: &Commit,
        index: usize,
        sender: &str,
        email: &str,
    ) -> Result<(), ApplyError> {
        let stream = commit.stream.as_str();
        let claim = Uuid::new_v4();
        let entry = format!("mail#{:020}#{index:04}", commit.version);
        let at = Timestamp::now();
        let mail =
            |status| Mail { stream: stream.to_owned(), entry: entry.clone(), status, claim, at };
        if !self.claim_mail(commit, mail).await? {
            return Ok(());
        }
        let error = match self.send(sender, email).await {
            Ok(()) => {
                self.mails.put_all(&[mail(Status::Sent)]).await?;
                tracing::info!(stream, version = commit.version, "a mail was sent");
                return Ok(());
            }
            Err(error) => error,
        };
        // Rule 14: the log gets the provider's code and not its message, which may quote the
        // address.
        let code =
            error.as_service_error().and_then(|error| error.meta().code()).unwrap_or("no answer");
        match meaning(&error) {
            Meaning::Later => {
                // The condition is this attempt's claim. If this request arrives late, another
                // instance may have sent the mail, and its record must stay.
                self.mails
                    .delete_if(
                        RowKey { partition: stream, sort: &entry },
                        "claim",
                        &claim.to_string(),
                    )
                    .await?;
                Err(ApplyError::Effect(format!("SES did not accept the mail yet: {code}")))
            }
            Meaning::Never => {
                self.mails.put_all(&[mail(Status::Refused)]).await?;
                count_unsent(commit, "refused", code);
                Ok(())
            }
            Meaning::Unknown => {
                self.mails.put_all(&[mail(Status::Unknown)]).await?;
                count_unsent(commit, "unknown", code);
                Ok(())
            }
        }
    }

    /// Sends the mail. Its text is the same for all users: the address is not verified, and no text
    /// of a user may reach a stranger.
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

/// Logs and counts a mail that was not sent, or possibly not sent. The alarm monitors the counter.
fn count_unsent(commit: &Commit, outcome: &str, code: &str) {
    tracing::error!(stream = %commit.stream, version = commit.version, outcome, code, "a mail was not sent, or its outcome is not known");
    metrics::count(UNSENT_MAILS);
}

/// Errors of a service that do not depend on the request's content.
const COMMON: [&str; 4] =
    ["ExpiredTokenException", "RequestExpired", "Throttling", "ThrottlingException"];

/// The meaning of an error for the mail.
enum Meaning {
    /// The mail was not accepted, and may be accepted later.
    Later,
    /// The mail was refused, and would be refused again.
    Never,
    /// The mail may have been accepted. This is assumed of every request without a response,
    /// including a refused connection.
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
            // 401 and 403 are mistakes in credentials or policies, which an operator repairs: the
            // provider did not examine the mail itself.
            _ if matches!(refused.raw().status().as_u16(), 401 | 403 | 429) => Meaning::Later,
            // Errors that all services have, some of them with the status 400 (API reference,
            // "Common errors").
            _ if refused.err().meta().code().is_some_and(|code| COMMON.contains(&code)) => {
                Meaning::Later
            }
            _ if refused.raw().status().is_client_error() => Meaning::Never,
            _ => Meaning::Unknown,
        },
        _ => Meaning::Unknown,
    }
}
