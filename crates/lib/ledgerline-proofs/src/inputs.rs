//! Bad input to every decoder: arbitrary bytes, and mutated valid input.
//!
//! No decoder may panic. Bad input of a client is answered with 4xx. Bad input from inside is
//! quarantined and not retried for ever.

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
};

use aws_lambda_events::apigw::ApiGatewayV2httpRequest;
use fastrand::Rng;
use ledgerline::{Commit, MemoryStore, RecordedState, position::Delivery};
use ledgerline_dynamodb::commit_from_image;
use ledgerline_lambda::{
    http::HttpRequest,
    queue::{ApplyError, Consumer, QueueRunner},
    stream::{Batch, Handler, records},
};
use serde_json::{Value, json};

use crate::{
    Effort, Finding, Tried,
    application::Application,
    tank,
    world::{World, each_seed},
};

/// The number of inputs in one run: the size of a batch of the stream.
const BATCH: usize = 100;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Decoder {
    Body,
    Path,
    Headers,
    StreamImage,
    QueueMessage,
    BusEntry,
    StoredItem,
    EmbeddedState,
}

const DECODERS: [Decoder; 8] = [
    Decoder::Body,
    Decoder::Path,
    Decoder::Headers,
    Decoder::StreamImage,
    Decoder::QueueMessage,
    Decoder::BusEntry,
    Decoder::StoredItem,
    Decoder::EmbeddedState,
];

/// Feeds bad input to each of the decoders.
///
/// # Errors
/// When a decoder panics, or gives an answer that bad input must not get.
pub fn proof(effort: &Effort, application: &Application) -> Result<Tried, Finding> {
    let runs = effort.runs(400, 2_600);
    let samples =
        Samples::read(application).map_err(|story| Finding { seed: effort.seed, story })?;
    let decoders = samples.decoders();
    let world = || World::new(&application.tables());
    let mut sums = BTreeMap::new();
    let mut accepted = 0;
    let play = |world: &mut World, seed: u64| {
        let decoder = decoders[usize::try_from(seed % decoders.len() as u64).unwrap_or(0)];
        let mut rng = Rng::with_seed(seed);
        fastrand::seed(seed);
        let fed = catch_unwind(AssertUnwindSafe(|| {
            world.runtime.block_on(feed(decoder, world, application, &samples, &mut rng))
        }));
        match fed {
            Ok(Ok(accepted)) => Ok((decoder, accepted)),
            Ok(Err(story)) => Err(Finding { seed, story: format!("{decoder:?}: {story}") }),
            Err(_) => Err(Finding { seed, story: format!("{decoder:?} panicked") }),
        }
    };
    each_seed(effort.seed, runs, world, play, |(decoder, taken)| {
        *sums.entry(format!("{decoder:?}")).or_insert(0) += BATCH;
        accepted += taken;
    })?;
    let sums: Vec<_> = sums.iter().map(|(decoder, count)| format!("{count} {decoder}")).collect();
    let beside = format!("{}; {accepted} were good input all the same", sums.join(", "));
    Ok(Tried::new(runs * BATCH as u64, "inputs", beside))
}

/// Valid input, by kind.
#[derive(Default)]
struct Samples {
    /// Requests to the command functions. The number is the index of the function in the
    /// application's list.
    requests: Vec<(usize, Value)>,
    records: Vec<Value>,
    messages: Vec<String>,
    entries: Vec<Value>,
    commits: Vec<Commit>,
}

impl Samples {
    /// Reads the sample events of the workspace: requests to the application's functions, and
    /// records, messages and entries. A kind without samples gets those of ledgerline. Creates
    /// commits of each of the application's aggregates too.
    fn read(application: &Application) -> Result<Self, String> {
        let mut samples = Self::of(application)?;
        let ledgerlines = Self::of(&tank::application())?;
        for (list, others) in [
            (&mut samples.records, ledgerlines.records),
            (&mut samples.entries, ledgerlines.entries),
        ] {
            if list.is_empty() {
                *list = others;
            }
        }
        if samples.messages.is_empty() {
            samples.messages = ledgerlines.messages;
        }
        let mut rng = Rng::with_seed(1);
        let commits =
            application.streams.iter().flat_map(|streams| (streams.write)("a-1", &mut rng));
        samples.commits = commits.collect();
        Ok(samples)
    }

    /// The sample events of the application alone.
    fn of(application: &Application) -> Result<Self, String> {
        let mut samples = Self::default();
        for (function, path) in application.events.samples()? {
            let event = application.events.json(&path)?;
            if let Some(place) =
                application.commands.iter().position(|known| known.name == function)
            {
                samples.requests.push((place, event));
            } else if event["detail"].is_object() {
                samples.entries.push(event["detail"].clone());
            } else {
                for record in event["Records"].as_array().into_iter().flatten() {
                    match record["body"].as_str() {
                        Some(body) => samples.messages.push(body.to_owned()),
                        None => samples.records.push(record.clone()),
                    }
                }
            }
        }
        Ok(samples)
    }

    /// The decoders for which there is valid input. An application may have no command function, or
    /// no histories.
    fn decoders(&self) -> Vec<Decoder> {
        let has_something = |decoder: &Decoder| match decoder {
            Decoder::Body | Decoder::Path | Decoder::Headers => !self.requests.is_empty(),
            Decoder::StoredItem => !self.commits.is_empty(),
            Decoder::EmbeddedState => self.commits.iter().any(|commit| commit.state.is_some()),
            Decoder::StreamImage | Decoder::QueueMessage | Decoder::BusEntry => true,
        };
        DECODERS.into_iter().filter(has_something).collect()
    }
}

/// Feeds 100 inputs to a decoder. The result is the number of inputs that the decoder accepted.
async fn feed(
    decoder: Decoder,
    world: &World,
    application: &Application,
    samples: &Samples,
    rng: &mut Rng,
) -> Result<usize, String> {
    let mut taken = 0;
    match decoder {
        Decoder::Body | Decoder::Path | Decoder::Headers => {
            for _ in 0..BATCH {
                let (place, request) = &samples.requests[rng.usize(0..samples.requests.len())];
                let mut request = request.clone();
                match decoder {
                    Decoder::Body => {
                        request["body"] =
                            text(rng, request["body"].as_str().unwrap_or("{}")).into();
                        request["isBase64Encoded"] = (rng.u32(0..10) == 0).into();
                    }
                    Decoder::Path => {
                        for name in ["id", "otherId"] {
                            let id =
                                request["pathParameters"][name].as_str().unwrap_or("1").to_owned();
                            request["pathParameters"][name] = text(rng, &id).into();
                        }
                        request["rawPath"] = text(rng, "/things/1").into();
                    }
                    Decoder::Headers
                    | Decoder::StreamImage
                    | Decoder::QueueMessage
                    | Decoder::BusEntry
                    | Decoder::StoredItem
                    | Decoder::EmbeddedState => {
                        for (name, valid) in [
                            ("if-match", "\"1\", \"2\""),
                            ("idempotency-key", "k"),
                            ("x-correlation-id", "c"),
                        ] {
                            if rng.bool() {
                                request["headers"][name] = text(rng, valid).into();
                            }
                        }
                    }
                }
                // The runtime does not invoke a function with an event that is no request.
                let Ok(event) = serde_json::from_value::<ApiGatewayV2httpRequest>(request.clone())
                else {
                    continue;
                };
                let function = (application.commands[*place].instance)(None);
                match function(HttpRequest::from(event)).await.status.as_u16() {
                    200..300 => taken += 1,
                    400..500 => {}
                    status => return Err(format!("{status} for {request}")),
                }
            }
        }
        Decoder::StreamImage => {
            let batch: Vec<_> = (0..BATCH)
                .map(|_| {
                    let record = &samples.records[rng.usize(0..samples.records.len())];
                    changed(rng, record)
                })
                .collect();
            let batch: Batch = serde_json::from_value(json!({ "Records": batch }))
                .map_err(|error| error.to_string())?;
            let records = records(batch);
            taken += records.iter().filter(|record| record.commit.is_ok()).count();
            // The fanout must pass on or quarantine each record. After a failure, the stream would
            // redeliver a bad record for ever.
            if let Some(failed) = application.pipeline_at(&world.wire).fanout.handle(&records).await
            {
                return Err(format!("it comes again and again: {:?}", records[failed]));
            }
            let services = world.wire.services();
            let _ = (
                services.take_entries(),
                services.take_messages("http://wire.invalid/dead-letters"),
            );
        }
        Decoder::QueueMessage => {
            let runner =
                QueueRunner { store: MemoryStore::default(), consumer: Reader(application) };
            for _ in 0..BATCH {
                let message = &samples.messages[rng.usize(0..samples.messages.len())];
                let body = text(rng, message);
                match runner.message(&body).await {
                    Ok(()) => taken += 1,
                    Err(
                        ApplyError::Malformed(_)
                        | ApplyError::Changes { .. }
                        | ApplyError::NotWanted { .. }
                        | ApplyError::Missing { .. },
                    ) => {}
                    Err(error) => return Err(format!("{error} for {body}")),
                }
            }
        }
        Decoder::BusEntry => {
            let pipeline = application.pipeline_at(&world.wire);
            for _ in 0..BATCH {
                let entry = &samples.entries[rng.usize(0..samples.entries.len())];
                let entry = changed(rng, entry);
                let Some(projector) = rng.choice(&pipeline.stateful) else { break };
                match projector.project(entry.clone()).await {
                    Ok(()) => taken += 1,
                    Err(error)
                        if ["the entry has no", "the state of", "a row cannot be written"]
                            .iter()
                            .any(|bad| error.starts_with(bad))
                            // The entry, or a row that an earlier entry wrote, has an invented
                            // version.
                            || error.contains("is not in the log") => {}
                    Err(error) => return Err(format!("{error} for {entry}")),
                }
            }
        }
        Decoder::StoredItem => {
            for _ in 0..BATCH {
                let commit = &samples.commits[rng.usize(0..samples.commits.len())];
                let value = serde_json::to_value(commit).map_err(|error| error.to_string())?;
                let changed = changed(rng, &value);
                let Ok(item) = serde_dynamo::to_item(changed) else { continue };
                if let Ok(commit) = commit_from_image(item) {
                    taken += 1;
                    (application.read_commit)(&commit);
                }
            }
        }
        Decoder::EmbeddedState => {
            let with_state: Vec<_> =
                samples.commits.iter().filter_map(|commit| commit.state.as_ref()).collect();
            for _ in 0..BATCH {
                let state = with_state[rng.usize(0..with_state.len())];
                let schema = if rng.u32(0..4) == 0 { rng.u32(..) } else { state.schema };
                taken += (application.read_state)(&RecordedState {
                    schema,
                    data: text(rng, &state.data),
                });
            }
        }
    }
    Ok(taken)
}

/// A consumer that accepts every commit and decodes all of it, as the consumers of the application
/// do.
struct Reader<'a>(&'a Application);

impl Consumer for Reader<'_> {
    async fn apply(&self, commit: &Commit) -> Result<(Delivery, u64), ApplyError> {
        for view in &self.0.logged {
            // An error is right here: a read model refuses, by name, an event of another aggregate.
            let _ = (view.view.changes)(commit);
        }
        for read in &self.0.reads {
            read(commit);
        }
        (self.0.read_commit)(commit);
        Ok((Delivery::Next, commit.version))
    }
}

// --- Bad input -----------------------------------------------------------------------------------

const PIECES: [&str; 24] = [
    "null",
    "true",
    "-1",
    "0",
    "1e999",
    "18446744073709551616",
    "9007199254740993",
    "1.5",
    "\"\"",
    "{}",
    "[]",
    "[[[[[[[[",
    "{\"a\":",
    "\\u0000",
    "\\ud800",
    "\u{0}",
    "\u{feff}",
    "\u{ffff}",
    "ä",
    "\"",
    "\\",
    ",",
    "}",
    "2026-02-30T25:61:61Z",
];

/// Arbitrary text, or the valid text with some changes.
fn text(rng: &mut Rng, valid: &str) -> String {
    if rng.u32(0..5) == 0 {
        let bytes: Vec<u8> = (0..rng.usize(0..200)).map(|_| rng.u8(..)).collect();
        return String::from_utf8_lossy(&bytes).into_owned();
    }
    if rng.bool()
        && let Ok(value @ (Value::Object(_) | Value::Array(_))) = serde_json::from_str(valid)
    {
        return changed(rng, &value).to_string();
    }
    let mut bytes = valid.as_bytes().to_vec();
    for _ in 0..rng.usize(1..5) {
        let at = rng.usize(0..=bytes.len());
        let to = (at + rng.usize(0..8)).min(bytes.len());
        match rng.u32(0..4) {
            0 => drop(bytes.drain(at..to)),
            1 => {
                let piece = PIECES[rng.usize(0..PIECES.len())];
                bytes.splice(at..to, piece.bytes());
            }
            2 => {
                let copy = bytes[at..to].to_vec();
                bytes.splice(at..at, copy);
            }
            _ => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << rng.u32(0..7)),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The valid value after one to three changes.
fn changed(rng: &mut Rng, valid: &Value) -> Value {
    let mut value = valid.clone();
    for _ in 0..rng.usize(1..4) {
        change(rng, &mut value);
    }
    value
}

/// Changes one part of the value, at a random depth.
fn change(rng: &mut Rng, value: &mut Value) {
    let stop = rng.u32(0..6) == 0;
    match value {
        Value::Object(fields) if !stop && !fields.is_empty() => {
            let key = fields.keys().nth(rng.usize(0..fields.len())).cloned().unwrap_or_default();
            match rng.u32(0..8) {
                0 => _ = fields.remove(&key),
                1 => {
                    let moved = fields.remove(&key).unwrap_or_default();
                    fields.insert(format!("{key}x"), moved);
                }
                _ => change(rng, &mut fields[&key]),
            }
        }
        Value::Array(values) if !stop && !values.is_empty() => {
            let place = rng.usize(0..values.len());
            match rng.u32(0..6) {
                0 => _ = values.remove(place),
                1 => values.push(values[place].clone()),
                _ => change(rng, &mut values[place]),
            }
        }
        Value::String(string) if rng.bool() => *string = text(rng, string),
        other @ (Value::Null
        | Value::Bool(_)
        | Value::Number(_)
        | Value::String(_)
        | Value::Array(_)
        | Value::Object(_)) => {
            *other = match rng.u32(0..10) {
                0 => Value::Null,
                1 => rng.bool().into(),
                2 => rng.i64(..).into(),
                3 => rng.u64(..).into(),
                4 => (rng.f64() * 1e300).into(),
                5 => String::new().into(),
                6 => PIECES[rng.usize(0..PIECES.len())].into(),
                7 => "x".repeat(rng.usize(0..5_000)).into(),
                8 => (0..rng.usize(0..100)).fold(json!({}), |inner, _| json!({ "a": inner })),
                _ => json!([other.take()]),
            }
        }
    }
}
