//! The welcome mail against a real table and a fake of SES. Each user gets at most one mail, even
//! if messages are redelivered.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::time::Duration;

use aws_sdk_dynamodb::{
    Client,
    config::{Builder, retry::RetryConfig, timeout::TimeoutConfig},
};
use jiff::SignedDuration;
use ledgerline::{Commit, EventLog, Meta, StreamId, encode};
use ledgerline_dynamodb::sdk_config;
use ledgerline_dynamodb::{DynamoDbStore, LogRows, RowKey};
use ledgerline_lambda::{
    messages::{details, unknown_state},
    process_manager::{POSITIONS, ProcessManager},
    queue::QueueRunner,
};
use ledgerline_local::services::DynamoDb;
use ledgerline_testing::{Ses, Wire, eventually};
use links::user::{Event, User};
use links_functions::process_managers::welcome_email::{CLAIM, WelcomeEmail, ses};
use serde_json::Value;

struct World {
    dynamodb: DynamoDb,
    ses: Ses,
    url: String,
    wire: Wire,
    /// How long a claim of another instance is valid.
    claim: SignedDuration,
}

impl World {
    async fn new() -> Self {
        let ses = Ses::default();
        let url = ses.start().await;
        let dynamodb =
            ledgerline_testing::dynamodb(&["CommitsTable", "WelcomeEmailPositionsTable"]).await;
        // The process manager checks that the log has the commits of its messages.
        let client = Client::new(&dynamodb.sdk_config());
        let log = DynamoDbStore::new(client, ledgerline_testing::table("CommitsTable"));
        for version in 1..=2 {
            log.append(&commit(version), None).await.unwrap();
        }
        Self { dynamodb, ses, url, wire: Wire::default(), claim: SignedDuration::ZERO }
    }

    /// Returns a cold instance of the function.
    fn function(
        &self,
        sender: Option<&str>,
    ) -> QueueRunner<DynamoDbStore, ProcessManager<WelcomeEmail>> {
        let config = Builder::from(&self.dynamodb.sdk_config())
            .retry_config(RetryConfig::disabled())
            .interceptor(self.wire.clone());
        let client = Client::from_conf(config.build());
        let positions = LogRows::new(
            client.clone(),
            ledgerline_testing::table("WelcomeEmailPositionsTable"),
            POSITIONS,
        );
        // Like the function, the test builds the client of SES from the configuration of the
        // database, which has short timeouts.
        let impatient =
            TimeoutConfig::builder().operation_attempt_timeout(Duration::from_millis(300)).build();
        let sdk = sdk_config(&self.url).into_builder().timeout_config(impatient).build();
        let reaction = WelcomeEmail {
            mails: positions.clone(),
            ses: aws_sdk_sesv2::Client::from_conf(ses(&sdk).build()),
            claim: self.claim,
            sender: sender.map(Into::into),
        };
        let store = DynamoDbStore::new(client, ledgerline_testing::table("CommitsTable"));
        QueueRunner { store, consumer: ProcessManager { positions, reaction } }
    }

    async fn deliver(&self, version: u64) -> Result<(), String> {
        self.deliver_from(version, Some("hello@example.com")).await
    }

    async fn deliver_from(&self, version: u64, sender: Option<&str>) -> Result<(), String> {
        self.function(sender)
            .apply_entries(entries(version))
            .await
            .map_err(|error| error.to_string())
    }

    /// Returns the row of the mail.
    async fn mail(&self) -> Option<Value> {
        let table = LogRows::new(
            Client::new(&self.dynamodb.sdk_config()),
            ledgerline_testing::table("WelcomeEmailPositionsTable"),
            POSITIONS,
        );
        let entry = format!("mail#{:020}#{:04}", 1, 0);
        table.read(RowKey { partition: "user-ada", sort: &entry }).await.unwrap()
    }

    /// Returns the status of the mail in the table.
    async fn status(&self) -> String {
        self.mail().await.unwrap()["status"].as_str().unwrap().to_owned()
    }

    fn mails(&self) -> usize {
        self.ses.mails().as_array().unwrap().len()
    }
}

/// Returns the entries of a commit on the bus.
fn entries(version: u64) -> Vec<Value> {
    let details = details(&commit(version), &unknown_state(), None).unwrap();
    details.iter().map(|detail| serde_json::from_str(detail).unwrap()).collect()
}

/// Returns a commit of a user: the registration, or a change of the email address.
fn commit(version: u64) -> Commit {
    let user_id = "ada".to_owned();
    let email = "ada@example.com".to_owned();
    let event = match version {
        1 => Event::UserRegistered { user_id, name: "Ada".into(), email },
        _ => Event::UserEmailUpdated { user_id, email },
    };
    Commit {
        stream: StreamId::new("user", "ada").unwrap(),
        version,
        events: vec![encode::<User>(&event).unwrap()],
        state: None,
        command: "c".into(),
        at: jiff::Timestamp::UNIX_EPOCH,
        meta: Meta::default(),
    }
}

#[tokio::test]
async fn a_new_user_gets_one_mail() {
    let world = World::new().await;
    for version in [1, 2, 1, 1, 2] {
        world.deliver(version).await.unwrap();
    }
    let mails = world.ses.mails();
    assert_eq!(mails.as_array().unwrap().len(), 1);
    assert_eq!(mails[0]["to"], serde_json::json!(["ada@example.com"]));
    assert_eq!(
        (&mails[0]["from"], &mails[0]["subject"]),
        (&"hello@example.com".into(), &"Welcome".into())
    );
}

/// An entry costs a read of the commit that it names and a read of the position. One query reads
/// commits that the process manager missed.
#[tokio::test]
async fn an_entry_in_order_costs_two_reads() {
    let reads = |world: &World| -> Vec<String> {
        let calls = world.wire.operations().into_iter();
        calls.filter(|call| call.starts_with("Get") || call == "Query").collect()
    };
    let world = World::new().await;
    world.deliver(1).await.unwrap();
    assert_eq!(reads(&world), ["GetItem", "GetItem"]);
    world.deliver(1).await.unwrap();
    assert_eq!(reads(&world), ["GetItem", "GetItem"]);
    let late = World::new().await;
    late.deliver(2).await.unwrap();
    assert_eq!(reads(&late), ["GetItem", "GetItem", "Query", "GetItem", "GetItem"]);
    assert_eq!((late.mails(), late.status().await.as_str()), (1, "sent"));
}

/// Entries of one user may reach two instances at once. The second instance leaves the mail to the
/// instance with the claim and fails, so its message is redelivered.
#[tokio::test]
async fn two_instances_at_once_send_one_mail_and_lose_none() {
    let world = World { claim: CLAIM, ..World::new().await };
    // The provider is slow, and refuses the mail for now.
    world.ses.pause(Duration::from_millis(500));
    world.ses.refuse(1, 429, "TooManyRequestsException");
    let second = async {
        eventually("the claim of the first", async || world.mail().await).await;
        world.deliver(2).await
    };
    let (first, second) = tokio::join!(world.deliver(1), second);
    assert_eq!(first.unwrap_err(), "SES did not accept the mail yet: TooManyRequestsException");
    assert_eq!(second.unwrap_err(), "another instance is sending the mail");
    // The test redelivers both messages.
    world.deliver(2).await.unwrap();
    world.deliver(1).await.unwrap();
    assert_eq!((world.mails(), world.status().await.as_str()), (1, "sent"));
}

/// The provider refuses the mail for a transient reason, so the mail was not sent. The function
/// sends it when the message is redelivered.
#[tokio::test]
async fn a_mail_that_the_provider_refused_for_a_transient_reason_is_sent_later() {
    for (status, code) in [
        (429, "TooManyRequestsException"),
        (403, "AccessDeniedException"),
        (400, "ThrottlingException"),
    ] {
        let world = World::new().await;
        world.ses.refuse(2, status, code);
        for _ in 0..2 {
            let error = world.deliver(1).await.unwrap_err();
            assert_eq!(error, format!("SES did not accept the mail yet: {code}"));
        }
        world.deliver(1).await.unwrap();
        assert_eq!((world.mails(), world.status().await.as_str()), (1, "sent"));
    }
}

/// The function does not retry a mail that the provider will never accept or may have accepted.
/// Such a mail holds up no other commit.
#[tokio::test]
async fn a_permanently_refused_mail_is_recorded_and_not_retried() {
    for (status, code, recorded) in
        [(400, "MessageRejected", "refused"), (500, "InternalFailure", "unknown")]
    {
        let world = World::new().await;
        world.ses.refuse(1, status, code);
        for version in [1, 1, 2] {
            world.deliver(version).await.unwrap();
        }
        assert_eq!((world.mails(), world.status().await.as_str()), (0, recorded));
    }
}

/// The short timeout of calls to DynamoDB does not apply to SES.
#[tokio::test]
async fn a_mail_is_sent_once_if_ses_responds_after_two_seconds() {
    let world = World::new().await;
    world.ses.pause(Duration::from_secs(2));
    world.deliver(1).await.unwrap();
    assert_eq!((world.mails(), world.status().await.as_str()), (1, "sent"));
}

#[tokio::test]
async fn without_a_sender_no_mail_is_sent_and_no_message_fails() {
    let world = World::new().await;
    world.deliver_from(1, None).await.unwrap();
    // A sender that is configured later does not welcome users who registered earlier.
    world.deliver(1).await.unwrap();
    assert_eq!(world.mails(), 0);
}
