//! The runner of a sign-up: a command after a person has confirmed a new account in the user pool.
//!
//! Source: the Cognito developer guide, "Post confirmation Lambda trigger".

use std::{num::NonZeroUsize, sync::Arc, time::Duration};

use futures::{FutureExt, future::LocalBoxFuture};
use jiff::Timestamp;
use lambda_runtime::LambdaEvent;
use ledgerline::{
    Aggregate, Cache, Causes, Context, EventStore, ExecuteError, Execution, Meta, Outcome,
    StreamId, execute,
    manifest::{Manifest, Source},
};
use ledgerline_dynamodb::DynamoDbStore;
use serde::Deserialize;
use serde_json::Value;
use tokio::time::timeout;
use uuid::Uuid;

use crate::{
    config,
    failure::Error,
    messages::field_or_root,
    metrics,
    start::{COMPRESS_OVER, Handle, configure_writes, handler, log, sdk_config, start},
    table_grants,
};

/// The trigger after a sign-up. Cognito has the same event after a forgotten password, with another
/// name.
const CONFIRMED: &str = "PostConfirmation_ConfirmSignUp";

/// The time for the command. Cognito waits for five seconds, with a cold start, and then shows the
/// person an error.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(3);

/// The counter of sign-ups whose command was not carried out. The alarm of this name notifies an
/// operator.
const FAILED_SIGN_UPS: &str = "FailedSignUps";

/// A person who has signed up.
#[derive(Clone, PartialEq, Eq)]
#[expect(
    missing_debug_implementations,
    reason = "it has personal data, which stays out of logs (rule 14)"
)]
pub struct SignUp {
    /// The subject of the person's tokens.
    pub subject: String,
    /// The address for mails, if the user pool has verified it: an administrator can confirm a
    /// person without that.
    pub email: Option<String>,
    /// The name, if the user pool asks for it.
    pub name: Option<String>,
}

/// Makes the command of a sign-up, and names the stream. The caller is the subject. An error is
/// about the person's data.
pub type MakeCommand<A> = fn(&SignUp) -> Result<(StreamId, <A as Aggregate>::Command), Error>;

/// The attributes of a user, as Cognito sends them.
#[derive(Deserialize)]
struct Attributes {
    sub: String,
    email: Option<String>,
    email_verified: Option<String>,
    name: Option<String>,
}

impl From<Attributes> for SignUp {
    fn from(Attributes { sub, email, email_verified, name }: Attributes) -> Self {
        let email = email.filter(|_| email_verified.as_deref() == Some("true"));
        Self { subject: sub, email, name }
    }
}

/// Runs a function that sends a command after each sign-up. A failure is logged, and never blocks
/// the sign-up. Cognito may repeat the event, so the aggregate refuses a second registration.
///
/// # Errors
/// When its configuration is wrong: `COMMITS_TABLE`, `REQUESTS_TABLE`.
pub async fn run<A: Aggregate>(make: MakeCommand<A>) -> Result<(), Error> {
    let build = async move {
        let sdk = sdk_config().await;
        // No connection is opened here: a slow or missing table must not block a start, which also
        // serves resets of passwords.
        let store = log(&sdk, aws_sdk_dynamodb::Client::new(&sdk))?;
        let store = configure_writes(store, config::text(table_grants::REQUESTS.variable)?)?;
        let cache = Cache::new(NonZeroUsize::MIN);
        let function = Arc::new(SignUps::<A, DynamoDbStore> { store, cache, make });
        Ok(handler(move |LambdaEvent { payload: event, .. }: LambdaEvent<Value>| {
            let function = Arc::clone(&function);
            async move { Ok(function.handle(event).await) }
        }))
    };
    serve(manifest::<A>(), build.boxed_local()).await
}

fn serve(
    manifest: Manifest,
    build: LocalBoxFuture<'_, Result<Handle<Value, Value>, Error>>,
) -> LocalBoxFuture<'_, Result<(), Error>> {
    start(manifest, build)
}

/// The manifest of the function.
pub fn manifest<A: Aggregate>() -> Manifest {
    let tables = table_grants::commands_without_keys(&[A::CATEGORY]);
    tables
        .into_iter()
        .fold(Manifest::new(Source::SignUp), Manifest::table)
        .optional(COMPRESS_OVER)
        .metric(FAILED_SIGN_UPS)
}

/// The parts of the function.
struct SignUps<A: Aggregate, S> {
    store: S,
    cache: Cache<A>,
    make: MakeCommand<A>,
}

impl<A: Aggregate, S: EventStore> SignUps<A, S> {
    /// Sends the command, if the event is one of a sign-up. Returns the event, as Cognito requires.
    async fn handle(&self, event: Value) -> Value {
        if event["triggerSource"] != CONFIRMED {
            return event;
        }
        let person = read_person(&event["request"]["userAttributes"]);
        match person.and_then(|person| Ok(((self.make)(&person)?, person))) {
            // Anybody can sign up with wrong data: that is no alarm.
            Err(error) => tracing::warn!(error = %Causes(&*error), "sign-up command"),
            Ok(((stream, command), person)) => {
                if let Err(error) = self.send(&stream, command, person).await {
                    metrics::count(FAILED_SIGN_UPS);
                    tracing::error!(%stream, error = %Causes(&*error), "sign-up command");
                }
            }
        }
        event
    }

    async fn send(
        &self,
        stream: &StreamId,
        command: A::Command,
        person: SignUp,
    ) -> Result<(), Error> {
        let actor = Some(person.subject);
        let meta = Meta { actor: actor.clone(), ..Meta::default() };
        let context = Context { at: Timestamp::now(), actor };
        let id = Uuid::now_v7().to_string();
        let execution = Execution::new(stream, &command, &context, &id, &meta);
        let sent = execute(&self.store, &self.cache, &DynamoDbStore::HOST, &execution);
        // The future is on the heap, for the reason in the runner of commands.
        let outcome = match timeout(COMMAND_TIMEOUT, Box::pin(sent)).await {
            Ok(Ok(Outcome::Committed(_) | Outcome::Unchanged(_) | Outcome::Repeated(_))) => "done",
            Ok(Err(ExecuteError::Refused(refusal))) => refusal.code(),
            Ok(Err(error)) => return Err(error.into()),
            Err(_) => return Err("the command timed out".into()),
        };
        tracing::info!(%stream, outcome, "sign-up command");
        Ok(())
    }
}

fn read_person(attributes: &Value) -> Result<SignUp, Error> {
    let attributes: Attributes = serde_path_to_error::deserialize(attributes)
        .map_err(|error| format!("the event has no valid attribute {}", field_or_root(&error)))?;
    Ok(attributes.into())
}

#[cfg(test)]
mod tests {
    use ledgerline::{
        EventLog, MemoryStore,
        spec::valid,
        testing::tank::{self, Tank},
    };
    use serde_json::json;

    use super::*;

    fn sign_ups() -> SignUps<Tank, MemoryStore> {
        let make = |person: &SignUp| {
            let site = person.email.clone().ok_or("the person has no address")?;
            let install = tank::Command::Install { site: valid(site), liquid: valid("water") };
            Ok((Tank::stream(&person.subject)?, install))
        };
        SignUps { store: MemoryStore::default(), cache: Cache::new(NonZeroUsize::MIN), make }
    }

    fn event(trigger: &str, attributes: Value) -> Value {
        json!({ "triggerSource": trigger, "request": { "userAttributes": attributes },
            "response": {} })
    }

    #[tokio::test]
    async fn a_confirmed_sign_up_is_one_command_and_nothing_blocks_it() {
        let function = sign_ups();
        let ada = json!({ "sub": "ada", "email": "ada@example.com", "email_verified": "true" });
        let stream = Tank::stream("ada").unwrap();
        for event in [
            // A forgotten password, an address that is not verified, and a person without a subject
            // send nothing.
            event("PostConfirmation_ConfirmForgotPassword", ada.clone()),
            event(CONFIRMED, json!({ "sub": "ada", "email": "ada@example.com" })),
            event(CONFIRMED, json!({ "email": "ada@example.com", "email_verified": "true" })),
            json!("no event"),
        ] {
            assert_eq!(function.handle(event.clone()).await, event);
            assert_eq!(function.store.get(&stream, 1).await.unwrap(), None);
        }
        // Cognito may repeat the event.
        for _ in 0..2 {
            function.handle(event(CONFIRMED, ada.clone())).await;
        }
        let commit = function.store.get(&stream, 1).await.unwrap().unwrap();
        assert_eq!(commit.meta.actor.as_deref(), Some("ada"));
        assert_eq!(function.store.get(&stream, 2).await.unwrap(), None);
    }
}
