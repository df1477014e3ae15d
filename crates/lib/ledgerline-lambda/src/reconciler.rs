//! The reconciler: on a schedule, it compares the heads of recently written streams with every
//! subscriber, and reports missing commits and views ahead of the log.
//!
//! It finds gaps that no later event would repair, such as a lost message of a stream's last
//! commit. It repairs nothing. A difference has a cause that an operator should know. Commits that
//! a process manager lacks must not be sent without a decision. The operator's tool repairs
//! differences: `ledger reconcile`.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use aws_config::{SdkConfig, timeout::TimeoutConfig};
use aws_sdk_lambda::{operation::invoke::builders::InvokeFluentBuilder, primitives::Blob};
use futures::FutureExt;
use jiff::{SignedDuration, Timestamp};
use lambda_runtime::LambdaEvent;
use ledgerline::{
    Causes,
    manifest::{Manifest, OtherView, Source, SubscriberKind},
};
use ledgerline_dynamodb::{
    DynamoDbStore, Generations, KeyNames, ReadPositions, Standby, ViewTable,
    reconcile::{CompareError, Comparison, ComparisonCounts, Difference, Found, Subscriber},
};
use serde_json::{Value, json};

use crate::{
    config,
    failure::Error,
    metrics,
    projection::view_rebuild::{RebuildRequest, RebuildResponse},
    start::{handler, sdk_config, start},
    table_grants,
};

/// The variable with a line for each subscriber: its function, its table, the names of the table's
/// keys, and the categories whose commits it applies. A missing sort key is a `-`.
pub(crate) const SUBSCRIBERS: &str = "SUBSCRIBERS";
/// The variable with a line for each view in another store: its function, the table of generations,
/// the key of the view there, the alias of the function that is asked for positions, and the
/// categories.
const OTHER_SUBSCRIBERS: &str = "OTHER_SUBSCRIBERS";

/// The age up to which streams are compared. It is twice the time between two comparisons, so that
/// a failed comparison leaves no stream out.
const COMPARED_AGE: SignedDuration = SignedDuration::from_hours(48);
/// The age from which commits are compared. Younger commits are in delivery or in a retry, and
/// other alarms cover those.
const DELIVERY_TIME: SignedDuration = SignedDuration::from_mins(15);
/// The age from which a generation that is not read counts as forgotten. It doubles the writes of
/// its view.
const STANDBY_AGE: SignedDuration = SignedDuration::from_hours(14 * 24);
/// The time for which the failure of a view is the answer to further requests for its positions. It
/// is as long as the function may run.
const FAILURE_TIME: Duration = Duration::from_secs(900);
/// The pause before the second attempt to read positions.
const RETRY_PAUSE: Duration = Duration::from_secs(2);
/// The most characters of a reason.
const MAX_REASON: usize = 200;
/// The most differences that are logged. The metric counts all of them.
const MAX_LOGGED: usize = 100;

/// The parts of the reconciler.
#[derive(Debug)]
pub struct Reconciler {
    /// The log.
    pub log: DynamoDbStore,
    /// `$all`.
    pub sequence: DynamoDbStore,
    /// The subscribers.
    pub subscribers: Vec<Subscriber>,
}

/// Runs the reconciler.
///
/// ```no_run
/// #[tokio::main(flavor = "current_thread")]
/// async fn main() -> Result<(), ledgerline_lambda::Error> {
///     ledgerline_lambda::reconciler::run().await
/// }
/// ```
///
/// # Errors
/// When `COMMITS_TABLE`, `SEQUENCE_TABLE`, `SUBSCRIBERS` or `OTHER_SUBSCRIBERS` is missing or wrong,
/// or the log cannot be read.
pub async fn run() -> Result<(), Error> {
    let manifest = Manifest::new(Source::Schedule)
        .table(table_grants::read_sequence())
        .table(table_grants::read_streams())
        .call("dynamodb:GetItem", SUBSCRIBERS)
        .call("dynamodb:Query", SUBSCRIBERS)
        .call("dynamodb:GetItem", OTHER_SUBSCRIBERS)
        .call("lambda:InvokeFunction", OTHER_SUBSCRIBERS)
        .metric(metrics::UNRECONCILED);
    let build = async {
        let sdk = sdk_config().await;
        let client = aws_sdk_dynamodb::Client::new(&sdk);
        let lines = config::lines(SUBSCRIBERS)?;
        let others = config::lines(OTHER_SUBSCRIBERS)?;
        let lambda = lambda(&sdk);
        let subscribers = lines.iter().map(|line| parse_subscriber(&client, line));
        let others = others.iter().map(|line| parse_other(&client, &lambda, line));
        let subscribers = subscribers.chain(others).collect::<Result<_, _>>()?;
        let sequence =
            DynamoDbStore::new(client.clone(), config::text(table_grants::SEQUENCE_TABLE)?);
        let log = crate::start::store(&sdk, client).await?;
        let reconciler = Arc::new(Reconciler { log, sequence, subscribers });
        Ok(handler(move |_: LambdaEvent<Value>| {
            let reconciler = Arc::clone(&reconciler);
            async move {
                reconciler.reconcile(Timestamp::now()).await?;
                Ok(())
            }
        }))
    };
    start(manifest, build.boxed_local()).await
}

/// Reads a line of `SUBSCRIBERS`.
fn parse_subscriber(
    client: &aws_sdk_dynamodb::Client,
    line: &str,
) -> Result<Subscriber, config::ConfigError> {
    let mut words = line.split_whitespace().map(ToOwned::to_owned);
    let mut word = || words.next().unwrap_or_default();
    let (id, table, partition, sort) = (word(), word(), word(), word());
    let of: Vec<_> = words.collect();
    if of.is_empty() {
        let reason = format!(
            "the line needs a function, a table, a partition key, a sort key or -, and categories: {line}"
        );
        return Err(config::ConfigError::Invalid { name: SUBSCRIBERS.into(), reason });
    }
    let sort = Some(sort).filter(|sort| sort != "-");
    // A state view has a row for each aggregate, and no sort key. Every other subscriber has
    // positions.
    let kind =
        if sort.is_some() { SubscriberKind::LogProjector } else { SubscriberKind::StateProjector };
    let keys = KeyNames { partition: partition.into(), sort: sort.map(Into::into) };
    let table = ViewTable::new(client.clone(), table, keys);
    Ok(Subscriber { id, kind, of, table, other: None })
}

/// Reads a line of `OTHER_SUBSCRIBERS`.
fn parse_other(
    client: &aws_sdk_dynamodb::Client,
    lambda: &aws_sdk_lambda::Client,
    line: &str,
) -> Result<Subscriber, config::ConfigError> {
    let words: Vec<_> = line.split_whitespace().collect();
    let [id, table, view, function, of @ ..] = words.as_slice() else {
        return Err(line_error(line));
    };
    let view =
        OtherView::from_key(view).filter(|_| !of.is_empty()).ok_or_else(|| line_error(line))?;
    let table = ViewTable::from_view(client.clone(), *table, &view);
    Ok(Subscriber {
        id: (*id).to_owned(),
        // The positions of each kind of view are asked for in the same way.
        kind: SubscriberKind::LogProjector,
        of: of.iter().map(ToString::to_string).collect(),
        table: table.with_positions(read_positions(lambda, function)),
        other: None,
    })
}

fn line_error(line: &str) -> config::ConfigError {
    let reason = format!(
        "the line needs a function, a table, the key of a view, an alias, and categories: {line}"
    );
    config::ConfigError::Invalid { name: OTHER_SUBSCRIBERS.into(), reason }
}

/// Returns the client that asks functions for positions. A function may have to start, and to
/// connect to its store.
fn lambda(sdk: &SdkConfig) -> aws_sdk_lambda::Client {
    let timeouts = TimeoutConfig::builder()
        .connect_timeout(Duration::from_secs(1))
        .operation_attempt_timeout(Duration::from_secs(15))
        .operation_timeout(Duration::from_secs(30));
    let sdk = sdk.to_builder().timeout_config(timeouts.build()).build();
    aws_sdk_lambda::Client::new(&sdk)
}

/// Returns a reader of positions, which invokes the function of the view, and once more after a
/// failure. A second failure is the answer to all further requests for some minutes. Otherwise a
/// store that does not answer would use up the time for the other subscribers (rule 11).
fn read_positions(lambda: &aws_sdk_lambda::Client, function: &str) -> ReadPositions {
    let lambda = lambda.clone();
    let function = function.to_owned();
    let failure = Arc::new(Mutex::new(None::<(Instant, String)>));
    Arc::new(move |generation, positions| {
        let request = RebuildRequest { generation, positions, ..RebuildRequest::default() };
        let payload = json!({ "rebuild": request }).to_string();
        let call = lambda.invoke().function_name(&function).payload(Blob::new(payload));
        let failure = Arc::clone(&failure);
        async move {
            let known = failure.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if let Some((_, reason)) = known.filter(|(time, _)| time.elapsed() < FAILURE_TIME) {
                return Err(reason);
            }
            let mut positions = ask(call.clone()).await;
            if positions.is_err() {
                tokio::time::sleep(RETRY_PAUSE).await;
                positions = ask(call).await;
            }
            if let Err(reason) = &positions {
                *failure.lock().unwrap_or_else(PoisonError::into_inner) =
                    Some((Instant::now(), reason.clone()));
            }
            positions
        }
        .boxed()
    })
}

/// Asks a function for positions. The reason of a failure is short, and quotes no answer.
async fn ask(call: InvokeFluentBuilder) -> Result<Vec<u64>, String> {
    let response = call.send().await.map_err(|error| Causes(&error).to_string())?;
    let body = response.payload.as_ref().map_or(&[][..], |payload| payload.as_ref());
    if response.function_error.is_some() {
        let error: Value = serde_json::from_slice(body).unwrap_or_default();
        let message = error["errorMessage"].as_str().unwrap_or("the function failed");
        return Err(message.chars().take(MAX_REASON).collect());
    }
    match serde_json::from_slice::<RebuildResponse>(body) {
        Ok(answer) => Ok(answer.positions),
        Err(_) => Err("the function returned no positions: deploy a newer version".to_owned()),
    }
}

/// Returns the generation that is not read, if an operator has probably forgotten it.
fn old_standby(generations: &Generations, now: Timestamp) -> Option<&Standby> {
    generations.standby.as_ref().filter(|standby| standby.since < now - STANDBY_AGE)
}

impl Reconciler {
    /// Compares the streams written in the last two days. Logs and counts missing commits,
    /// subscribers ahead of the log, and generations that an operator forgot to drop.
    ///
    /// # Errors
    /// When a table cannot be read.
    pub async fn reconcile(&self, now: Timestamp) -> Result<Found, CompareError> {
        let mut subscribers = Vec::new();
        let mut kept = 0;
        for subscriber in &self.subscribers {
            let subscriber_id = &subscriber.id;
            let generations = subscriber.table.recent_generations().await?;
            if let Some(Standby { number, since, .. }) = old_standby(&generations, now) {
                kept += 1;
                tracing::error!(
                    what = "kept", who = subscriber_id, generation = number, %since,
                    "not reconciled"
                );
            }
            subscribers.push(subscriber.clone().at_generations().await?);
        }
        let comparison = Comparison {
            log: &self.log,
            parts: 1,
            order: Some(&self.sequence),
            with_order: false,
            subscribers: &subscribers,
            since: Some(now - COMPARED_AGE),
            until: now - DELIVERY_TIME,
            most: MAX_LOGGED,
        };
        let found = comparison.run().await?;
        let Found { looked, missing, ahead, unreadable, .. } = &found;
        let sum = |count: fn(&ComparisonCounts) -> usize| looked.iter().map(count).sum::<usize>();
        for (finding, differences) in
            [("missing", missing), ("ahead", ahead), ("unreadable", unreadable)]
        {
            for Difference { who, kind: _, stream, head, found, generation, unreadable } in
                differences
            {
                tracing::error!(
                    what = finding, who, %stream, version = head, there = found, generation,
                    reason = unreadable, "not reconciled"
                );
            }
        }
        tracing::info!(
            streams = sum(|looked| looked.streams),
            missing = sum(|looked| looked.missing),
            ahead = sum(|looked| looked.ahead),
            unreadable = sum(|looked| looked.unreadable),
            "reconciled"
        );
        let differences = sum(|looked| looked.missing + looked.ahead + looked.unreadable);
        metrics::count_unreconciled(differences + kept);
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generation_that_is_not_read_is_forgotten_after_fourteen_days() {
        let began = Timestamp::now();
        let is_forgotten = |generations: &Generations, days: i64| {
            let now = began + SignedDuration::from_hours(days * 24);
            old_standby(generations, now).is_some()
        };
        let building = Generations::default().begin_build(began).unwrap();
        let kept = building.switch(1, began).unwrap();
        for generations in [&building, &kept] {
            assert_eq!([14, 15].map(|days| is_forgotten(generations, days)), [false, true]);
        }
        assert!(!is_forgotten(&Generations::default(), 15));
    }

    #[tokio::test]
    async fn a_view_that_fails_twice_is_not_asked_again() {
        // Given no server at this address,
        let sdk = ledgerline_dynamodb::sdk_config("http://127.0.0.1:1");
        let read = read_positions(&aws_sdk_lambda::Client::new(&sdk), "arn:cards:live");
        let begun = Instant::now();
        let error = read(0, Vec::new()).await.unwrap_err();
        assert!(begun.elapsed() >= RETRY_PAUSE, "{error}");
        let begun = Instant::now();
        assert_eq!(read(0, Vec::new()).await, Err(error));
        assert!(begun.elapsed() < RETRY_PAUSE);
    }

    #[tokio::test]
    async fn a_line_names_a_function_its_table_with_its_keys_and_categories() {
        let client = crate::start::dynamodb().await;
        let parse = |line: &str| parse_subscriber(&client, line);
        let state = parse("LevelsFunction levels id - tank").unwrap();
        assert_eq!(
            (state.kind, state.table.keys().sort.as_deref(), &*state.of),
            (SubscriberKind::StateProjector, None, &["tank".to_owned()][..])
        );
        let log = parse("FillsFunction fills tankId entry tank site").unwrap();
        assert_eq!(
            (log.kind, &*log.table.keys().partition, log.table.keys().sort.as_deref()),
            (SubscriberKind::LogProjector, "tankId", Some("entry"))
        );
        for wrong in ["LevelsFunction", "LevelsFunction levels id -", ""] {
            assert!(parse(wrong).unwrap_err().to_string().contains("SUBSCRIBERS"), "{wrong}");
        }
        let lambda = lambda(&crate::start::sdk_config().await);
        let parse = |line: &str| parse_other(&client, &lambda, line);
        let other = parse("CardsFunction views opensearch/cards arn:cards:live tank").unwrap();
        assert!(other.table.is_in_other_store() && other.of == ["tank"], "{other:?}");
        for wrong in
            ["CardsFunction views opensearch/cards arn:cards:live", "F views cards arn tank"]
        {
            assert!(parse(wrong).unwrap_err().to_string().contains("OTHER_SUBSCRIBERS"), "{wrong}");
        }
    }
}
