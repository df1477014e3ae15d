//! The adapter of the bus for consumers of commits. An entry names a commit. The log has that
//! commit, and the earlier ones that the consumer has not applied. So entries may be late,
//! duplicates, out of order, or lost.

use std::{panic::AssertUnwindSafe, sync::Arc};

use aws_config::SdkConfig;
use futures::{FutureExt, future::LocalBoxFuture};
use lambda_runtime::LambdaEvent;
use ledgerline::{Causes, EventLog, StreamId, manifest::Manifest};
use serde::Deserialize;
use serde_json::Value;
use tokio::time::Instant;

use super::state_projector::details;
use crate::{
    failure::Error,
    messages::{Message, Reference, field_or_root},
    projection::queue_runner::{ApplyError, Consumer, INVOCATION_TIME, QueueRunner},
    start::{Handle, handler, sdk_config, start, store},
    table_grants,
};

/// The part of an entry that names its commit.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    last_event: EntryEvent,
}

#[derive(Deserialize)]
struct EntryEvent {
    stream: StreamId,
    version: u64,
}

/// Runs a consumer of commits that a rule of the bus invokes. It applies each commit exactly once
/// and in order (rule 7). `manifest` declares the bus rule and the tables; `run` adds the grant to
/// read streams.
///
/// # Errors
/// When its configuration is wrong: `COMMITS_TABLE`, and the variables that `build` reads.
pub(crate) async fn run<C: Consumer + 'static>(
    manifest: Manifest,
    build: impl AsyncFnOnce(SdkConfig) -> Result<C, Error>,
) -> Result<(), Error> {
    let build = async {
        let sdk = sdk_config().await;
        let store = store(&sdk, aws_sdk_dynamodb::Client::new(&sdk)).await?;
        let runner = Arc::new(QueueRunner { store, consumer: build(sdk).await? });
        Ok(handler(move |LambdaEvent { payload: event, .. }: LambdaEvent<Value>| {
            let runner = Arc::clone(&runner);
            async move { Ok(runner.apply_entries(details(event)?).await?) }
        }))
    };
    serve(manifest.table(table_grants::read_streams()), build.boxed_local()).await
}

/// This function has no type parameters, so it is compiled once for all consumers behind a rule.
fn serve(
    manifest: Manifest,
    build: LocalBoxFuture<'_, Result<Handle<Value, ()>, Error>>,
) -> LocalBoxFuture<'_, Result<(), Error>> {
    start(manifest, build)
}

impl<S: EventLog, C: Consumer> QueueRunner<S, C> {
    /// Applies the commits up to that of each of these details of entries, one after the other. A
    /// failed entry does not keep the others from being applied.
    ///
    /// # Errors
    /// The error of the first entry that failed. Lambda delivers the event again, and the applied
    /// commits are duplicates then.
    pub async fn apply_entries(&self, details: Vec<Value>) -> Result<(), ApplyError> {
        let mut outcome = Ok(());
        for detail in details {
            let stream = detail["stream"].as_str().map(ToOwned::to_owned);
            let correlation_id = detail["meta"]["correlationId"].as_str().map(ToOwned::to_owned);
            // A panic at one entry must not keep the others from being applied.
            let applied = AssertUnwindSafe(self.apply_entry(detail)).catch_unwind().await;
            let applied = applied.unwrap_or_else(|_| Err(ApplyError::Effect("panic".to_owned())));
            if let Err(error) = &applied {
                tracing::error!(stream, correlation_id, error = %Causes(error), "projection");
            }
            outcome = outcome.and(applied);
        }
        outcome
    }

    async fn apply_entry(&self, detail: Value) -> Result<(), ApplyError> {
        let malformed = |error: serde_path_to_error::Error<serde_json::Error>| {
            ApplyError::Malformed(format!("the entry has no valid field {}", field_or_root(&error)))
        };
        let Entry { last_event: EntryEvent { stream, version } } =
            serde_path_to_error::deserialize(detail).map_err(malformed)?;
        let generations = self.consumer.generations().await?;
        let message = Ok(Message::Reference(Reference { stream, version }));
        let repair_until = Instant::now() + INVOCATION_TIME / 2;
        let applied = self.apply_message(message, None, &generations, repair_until);
        let (delivery, commit) = applied.await?;
        tracing::info!(stream = %commit.stream, version, ?delivery, "projection");
        Ok(())
    }
}
