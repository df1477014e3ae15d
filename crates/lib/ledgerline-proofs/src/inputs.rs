//! Bad input to every decoder: arbitrary bytes, and mutated valid input.
//!
//! No decoder may panic. Bad input of a client is answered with 4xx. Bad input from inside is
//! quarantined and not retried for ever.

use std::panic::{AssertUnwindSafe, catch_unwind};

use anyhow::{Context, Result, bail, ensure};
use aws_lambda_events::apigw::ApiGatewayV2httpRequest;
use fastrand::Rng;
use ledgerline::{Commit, MemoryStore, RecordedState, position::Delivery};
use ledgerline_dynamodb::{CommitImage, commit_from_image};
use ledgerline_lambda::{
    http::HttpRequest,
    queue::{ApplyError, Consumer, QueueRunner},
    stream_records::{Handler, records},
};
use serde_json::{Value, json};

use crate::{
    Effort, Runs, Tried,
    application::Application,
    counts::Counts,
    tank_application::tanks,
    world::{World, each_seed},
};

/// The number of inputs in one run: the size of a batch of the stream.
const BATCH: usize = 100;

/// The batches of all decoders.
const RUNS: Runs = Runs { least: 160, seconds: 4, long: 2_600 };

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

/// The decoders, each with the unit of its inputs.
const DECODERS: [(Decoder, &str); 8] = [
    (Decoder::Body, "bodies"),
    (Decoder::Path, "paths"),
    (Decoder::Headers, "headers"),
    (Decoder::StreamImage, "images of the stream"),
    (Decoder::QueueMessage, "messages"),
    (Decoder::BusEntry, "entries of the bus"),
    (Decoder::StoredItem, "stored items"),
    (Decoder::EmbeddedState, "embedded states"),
];

/// Feeds bad input to each of the decoders. Fails if a decoder panics, or gives an answer that bad
/// input must not get.
pub(crate) fn proof(effort: &Effort, application: &Application) -> Result<Tried> {
    let samples = Samples::read(application)?;
    let decoders = samples.decoders();
    let play = |world: &mut World, seed: u64| {
        let (decoder, unit) = decoders[usize::try_from(seed % decoders.len() as u64).unwrap_or(0)];
        fastrand::seed(seed);
        let rng = &mut Rng::with_seed(seed);
        let feed = Feed { world, application, samples: &samples, rng, accepted: 0 };
        let fed = catch_unwind(AssertUnwindSafe(|| feed.feed(decoder)))
            .unwrap_or_else(|_| bail!("it panicked"))
            .with_context(|| format!("{decoder:?}"))?;
        let mut counts = Counts::default();
        counts.add(unit, BATCH as u64);
        counts.add("inputs that were good all the same", fed);
        Ok(counts)
    };
    let counts = each_seed(effort, &RUNS, || World::new(&application.tables()), play)?;
    Ok(Tried::new(counts.runs * BATCH as u64, "inputs", counts))
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
    fn read(application: &Application) -> Result<Self> {
        let mut samples = Self::new(application)?;
        let ledgerlines = Self::new(&tanks())?;
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
    fn new(application: &Application) -> Result<Self> {
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
    fn decoders(&self) -> Vec<(Decoder, &'static str)> {
        let has_something = |(decoder, _): &(Decoder, _)| match decoder {
            Decoder::Body | Decoder::Path | Decoder::Headers => !self.requests.is_empty(),
            Decoder::StoredItem => !self.commits.is_empty(),
            Decoder::EmbeddedState => self.commits.iter().any(|commit| commit.state.is_some()),
            Decoder::StreamImage | Decoder::QueueMessage | Decoder::BusEntry => true,
        };
        DECODERS.into_iter().filter(has_something).collect()
    }
}

/// A run of 100 inputs.
struct Feed<'a> {
    world: &'a World,
    application: &'a Application,
    samples: &'a Samples,
    rng: &'a mut Rng,
    /// The number of inputs that the decoder accepted.
    accepted: u64,
}

impl Feed<'_> {
    /// Feeds all inputs to a decoder. The result is the number of inputs that it accepted.
    fn feed(mut self, decoder: Decoder) -> Result<u64> {
        self.world.runtime.block_on(async {
            match decoder {
                Decoder::Body => self.send_requests(change_body).await?,
                Decoder::Path => self.send_requests(change_path).await?,
                Decoder::Headers => self.send_requests(change_headers).await?,
                Decoder::StreamImage => self.pass_on_records().await?,
                Decoder::QueueMessage => self.deliver_messages().await?,
                Decoder::BusEntry => self.project_entries().await?,
                Decoder::StoredItem => self.decode_items()?,
                Decoder::EmbeddedState => self.decode_states(),
            }
            Ok(self.accepted)
        })
    }

    fn pick<T>(&mut self, samples: &'_ [T]) -> usize {
        self.rng.usize(0..samples.len())
    }

    async fn send_requests(&mut self, change: fn(&mut Rng, &mut Value)) -> Result<()> {
        for _ in 0..BATCH {
            let place = self.pick(&self.samples.requests);
            let (function, mut request) = self.samples.requests[place].clone();
            change(self.rng, &mut request);
            // The runtime does not invoke a function with an event that is no request.
            let Ok(event) = serde_json::from_value::<ApiGatewayV2httpRequest>(request.clone())
            else {
                continue;
            };
            let function = (self.application.commands[function].instance)(None);
            match function(HttpRequest::from(event)).await.status.as_u16() {
                200..300 => self.accepted += 1,
                400..500 => {}
                status => bail!("{status} for {request}"),
            }
        }
        Ok(())
    }

    /// The fanout must pass on or quarantine each record. After a failure, the stream would
    /// redeliver a bad record for ever.
    async fn pass_on_records(&mut self) -> Result<()> {
        let mut batch = Vec::new();
        for _ in 0..BATCH {
            let place = self.pick(&self.samples.records);
            batch.push(mutate(self.rng, &self.samples.records[place]));
        }
        let records = records(serde_json::from_value(json!({ "Records": batch }))?);
        self.accepted += records.iter().filter(|record| record.commit.is_ok()).count() as u64;
        let failed = self.application.pipeline_at(&self.world.wire).fanout.handle(&records).await;
        let record = failed.map(|failed| &records[failed]);
        ensure!(record.is_none(), "it is delivered without end: {record:?}");
        let services = self.world.wire.services();
        let _ = services.take_entries();
        let _ = services.take_messages("http://wire.invalid/dead-letters");
        Ok(())
    }

    async fn deliver_messages(&mut self) -> Result<()> {
        let runner =
            QueueRunner { store: MemoryStore::default(), consumer: Reader(self.application) };
        for _ in 0..BATCH {
            let place = self.pick(&self.samples.messages);
            let body = text(self.rng, &self.samples.messages[place]);
            match runner.message(&body).await {
                Ok(()) => self.accepted += 1,
                Err(
                    ApplyError::Malformed(_)
                    | ApplyError::Changes { .. }
                    | ApplyError::NotWanted { .. }
                    | ApplyError::Missing { .. },
                ) => {}
                Err(error) => bail!("{error} for {body}"),
            }
        }
        Ok(())
    }

    async fn project_entries(&mut self) -> Result<()> {
        let pipeline = self.application.pipeline_at(&self.world.wire);
        for _ in 0..BATCH {
            let place = self.pick(&self.samples.entries);
            let entry = mutate(self.rng, &self.samples.entries[place]);
            let Some(projector) = self.rng.choice(&pipeline.stateful) else { break };
            let Err(error) = projector.project(entry.clone()).await else {
                self.accepted += 1;
                continue;
            };
            let error = error.to_string();
            let is_refusal = ["the entry has no", "the state of", "a row cannot be written"]
                .iter()
                .any(|refusal| error.starts_with(refusal));
            // The entry, or a row that an earlier entry wrote, may have an invented version.
            let is_known = is_refusal || error.contains("is not in the log");
            ensure!(is_known, "{error} for {entry}");
        }
        Ok(())
    }

    fn decode_items(&mut self) -> Result<()> {
        for _ in 0..BATCH {
            let place = self.pick(&self.samples.commits);
            let value = serde_json::to_value(&self.samples.commits[place])?;
            let Ok(item) = serde_dynamo::to_item(mutate(self.rng, &value)) else { continue };
            if let Ok(CommitImage { commit, .. }) = commit_from_image(item) {
                self.accepted += 1;
                (self.application.read_commit)(&commit);
            }
        }
        Ok(())
    }

    fn decode_states(&mut self) {
        let commits = self.samples.commits.iter();
        let states: Vec<_> = commits.filter_map(|commit| commit.state.as_ref()).collect();
        for _ in 0..BATCH {
            let state = states[self.pick(&states)];
            let schema = if self.rng.u32(0..4) == 0 { self.rng.u32(..) } else { state.schema };
            let data = text(self.rng, &state.data);
            let is_accepted = (self.application.read_state)(&RecordedState { schema, data });
            self.accepted += u64::from(is_accepted);
        }
    }
}

fn change_body(rng: &mut Rng, request: &mut Value) {
    request["body"] = text(rng, request["body"].as_str().unwrap_or("{}")).into();
    request["isBase64Encoded"] = (rng.u32(0..10) == 0).into();
}

fn change_path(rng: &mut Rng, request: &mut Value) {
    for name in ["id", "otherId"] {
        let id = request["pathParameters"][name].as_str().unwrap_or("1").to_owned();
        request["pathParameters"][name] = text(rng, &id).into();
    }
    request["rawPath"] = text(rng, "/things/1").into();
}

fn change_headers(rng: &mut Rng, request: &mut Value) {
    for (name, valid) in
        [("if-match", "\"1\", \"2\""), ("idempotency-key", "k"), ("x-correlation-id", "c")]
    {
        if rng.bool() {
            request["headers"][name] = text(rng, valid).into();
        }
    }
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
        return mutate(rng, &value).to_string();
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
fn mutate(rng: &mut Rng, valid: &Value) -> Value {
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
