//! A crash at every call of a handler, once before the call is applied and once after. The handler
//! is called again, as its source would do it. In the end, everything must be as without a crash.

use std::{collections::BTreeMap, num::NonZeroU32, rc::Rc, sync::Arc};

use anyhow::{Context, Result, bail, ensure};
use aws_lambda_events::apigw::ApiGatewayV2httpRequest;
use fastrand::Rng;
use futures::FutureExt;
use ledgerline::{Commit, EventLog};
use ledgerline_dynamodb::Archive;
use ledgerline_lambda::{
    http::HttpRequest,
    stream_records::{Handler, Record, Unreadable},
};
use ledgerline_testing::table;
use serde_json::Value;

use crate::{
    Effort, Tried,
    application::{Application, CommandFunction},
    case::{Case, Done, Outcome, each, exactly},
    faulty_wire::{Plan, Wire},
    form::{Form, form, use_form},
    pipeline::{LogFunction, StateFunction, records},
    tank_application::client_view,
    world::{World, bodies},
};

/// The number of failed calls after which a handler fails the proof.
const ATTEMPTS: usize = 20;

/// Crashes every handler at each of its calls. Fails if an outcome with a crash differs from the one
/// without.
pub(crate) fn proof(effort: &Effort, application: &Application) -> Result<Tried> {
    let (mut points, mut calls) = (0, Vec::new());
    let cases = cases(application, effort)?;
    for (case, form) in cases.iter().flat_map(|case| Form::ALL.map(|form| (case, form))) {
        use_form(form);
        let (expected, all) = run(application, case).with_context(|| case.name.clone())?;
        calls.push(format!("{} in {form:?} {all}", case.name));
        for applied in [false, true] {
            for after in 0..all {
                let how = if applied { "applied" } else { "not applied" };
                let crash = || format!("{} crashed at call {after}, {how}", case.name);
                let found = interrupt(application, case, after, applied).with_context(crash)?;
                ensure!(
                    (case.right)(&found, &expected),
                    "{}{}",
                    crash(),
                    difference(&found, &expected)
                );
                points += 1;
            }
        }
    }
    let beside = format!(
        "each call lost on its way there and, applied, on its way back; calls: {}",
        calls.join(", ")
    );
    Ok(Tried::new(points, "crashes, all points", beside))
}

/// Runs the handler without a crash. The result is the outcome, and the number of calls.
fn run(application: &Application, case: &Case) -> Result<(Outcome, usize)> {
    let world = World::new(&application.tables())?;
    world.runtime.block_on(async {
        prepare(case, &world).await?;
        let done = Done::default();
        let _ = world.wire.take_calls();
        let is_done = (case.call)(world.wire.clone(), Rc::clone(&done)).await;
        ensure!(is_done, "it does not work at all: {done:?}");
        let calls = world.wire.take_calls();
        Ok((observe(application, &world, done.take()), calls))
    })
}

/// Crashes the handler after `after` calls. Then it calls the handler until all is done, and does
/// everything a second time.
fn interrupt(
    application: &Application,
    case: &Case,
    after: usize,
    applied: bool,
) -> Result<Outcome> {
    let world = World::new(&application.tables())?;
    world.runtime.block_on(async {
        prepare(case, &world).await?;
        let done = Done::default();
        world.wire.follow(Plan::Crash { after, applied }, 0);
        tokio::select! {
            _ = (case.call)(world.wire.clone(), Rc::clone(&done)) => bail!("it has no such call"),
            () = world.wire.crashed() => {}
        }
        world.wire.calm();
        let again = Done::default();
        for done in [&done, &again] {
            let mut attempts = 0;
            while !(case.call)(world.wire.clone(), Rc::clone(done)).await {
                attempts += 1;
                ensure!(attempts < ATTEMPTS, "it is never done");
            }
        }
        ensure!(done == again, "{done:?}\n  and when it is all done again {again:?}");
        Ok(observe(application, &world, done.take()))
    })
}

async fn prepare(case: &Case, world: &World) -> Result<()> {
    for commit in case.log.iter().flatten() {
        world.store().append(commit, None).await?;
    }
    let has_second = case.log.iter().any(|commits| commits.len() > 1);
    if form() == Form::Stubs && has_second {
        let (store, mut stubs) = (world.store(), 0);
        for stream in case.log.iter().filter_map(|commits| Some(&commits.first()?.stream)) {
            let mut survey = store.survey(stream.category());
            while let Some((_, commits)) = survey.next().await? {
                stubs += commits.iter().filter(|commit| commit.is_stub).count();
            }
        }
        ensure!(stubs > 0, "no commit was archived: the form tests nothing");
    }
    Ok(())
}

fn observe(application: &Application, world: &World, answers: Vec<String>) -> Outcome {
    let services = world.wire.services();
    let mut tables = BTreeMap::new();
    for name in application.tables() {
        let scan = serde_json::json!({ "TableName": table(name), "ConsistentRead": true });
        let answer: Value =
            serde_json::from_slice(&services.call("Scan", &scan).body).unwrap_or_default();
        let items = answer["Items"].as_array().cloned().unwrap_or_default();
        for mut item in items {
            // These attributes are times of a clock, or random for each attempt, and so differ
            // between runs.
            for attribute in
                ["at", "expires", "tombstone", "claim", "$fence", "$holder", "$moves", "$until"]
            {
                if let Some(value) = item.get_mut(attribute) {
                    *value = Value::Null;
                }
            }
            // The hash of a body object, too, because the object has the time.
            if let Some(name) = item["body"]["S"].as_str() {
                item["body"] = name.rsplit_once('-').map(|(versions, _)| versions).into();
            }
            let key = |attribute: &str| item[attribute].as_object().map(|key| format!("{key:?}"));
            let keys: Vec<_> =
                ["stream", "version", "entry", "request"].into_iter().filter_map(key).collect();
            let keys = if keys.is_empty() { item.to_string() } else { keys.join(" ") };
            tables.insert(format!("{name} {keys}"), item.to_string());
        }
    }
    let entries = services.take_entries();
    let states = services.take_states();
    let mut entries: Vec<_> = entries.iter().chain(&states).map(Value::to_string).collect();
    entries.sort();
    entries.dedup();
    let mut messages = Vec::new();
    let urls = application.pipeline_at(&world.wire).logged.into_iter().map(|logged| logged.url);
    for url in urls.chain(["http://wire.invalid/dead-letters".to_owned()]) {
        for queued in services.take_messages(&url) {
            let message = (url.clone(), queued.body);
            if !messages.contains(&message) {
                messages.push(message);
            }
        }
    }
    Outcome { answers, tables, entries, messages, mails: services.mails() }
}

fn difference(found: &Outcome, expected: &Outcome) -> String {
    let mut story = String::new();
    let keys = found.tables.keys().chain(expected.tables.keys());
    for key in keys.filter(|key| found.tables.get(*key) != expected.tables.get(*key)) {
        let is = found.tables.get(key);
        let should = expected.tables.get(key);
        story += &format!("\n  {key}\n    is        {is:?}\n    should be {should:?}");
    }
    let rest = |outcome: &Outcome| {
        let Outcome { answers, tables: _, entries, messages, mails } = outcome;
        format!("{answers:?} {} entries {} messages {mails} mails", entries.len(), messages.len())
    };
    story + &format!("\n  {}\n  should be {}", rest(found), rest(expected))
}

// --- The handlers --------------------------------------------------------------------------------

/// The handlers of an application: its functions, its fanout, and its own cases.
fn cases(application: &Application, effort: &Effort) -> Result<Vec<Case>> {
    let mut rng = Rng::with_seed(effort.seed);
    // Two names with a common prefix, and one with another: an application may key rows by a prefix
    // of names.
    let mut streams = |category: &str| -> Vec<Vec<Commit>> {
        ["a-1", "a-2", "b-1"].map(|name| application.write(category, name, &mut rng)).into()
    };
    let mut cases = Vec::new();
    if effort.tries_libraries(application) {
        for function in &application.commands {
            cases.push(commands(application, function)?);
        }
        let fanned =
            application.streams.iter().flat_map(|kind| streams(kind.category).into_iter().take(2));
        cases.push(fanout(application, fanned.collect()));
        let archived = application.streams.iter().flat_map(|kind| streams(kind.category));
        cases.push(archive(archived.collect()));
    }
    for view in &application.stateful {
        cases.push(state_view_case(application, view, streams(view.category).swap_remove(0)));
    }
    for view in &application.logged {
        let streams: Vec<_> = view.view.of.iter().flat_map(|category| streams(category)).collect();
        cases.push(log_view_case(view, view.table.into(), streams.clone(), true));
        cases.push(log_view_case(view, format!("{} (whole)", view.table), streams, false));
    }
    cases.extend(application.cases.iter().map(|case| case()));
    Ok(cases)
}

/// The case of a command function: its sample requests, each with an idempotency key.
fn commands(application: &Application, function: &CommandFunction) -> Result<Case> {
    // The requests are in the order of their first steps, because later requests depend on earlier
    // ones.
    let mut samples = Vec::new();
    let events = application.events.samples()?.into_iter();
    for (_, path) in events.filter(|(name, _)| name == function.name) {
        let answers = application.answers.json(&path)?;
        let steps =
            answers.as_array().into_iter().flatten().filter_map(|step| step["step"].as_u64());
        let first = steps.min().with_context(|| format!("{path} has no step in its answers"))?;
        samples.push((first, path));
    }
    samples.sort_unstable();
    let mut requests: Vec<Value> = Vec::new();
    for (_, path) in samples {
        let mut event = application.events.json(&path)?;
        event["headers"]["idempotency-key"] =
            path.trim_end_matches(".json").replace('/', "-").into();
        requests.push(event);
    }
    // Each call creates a cold instance of the function.
    let instance = Arc::clone(&function.instance);
    let call = move |wire: Wire, done: Done| {
        let requests = requests.clone();
        let function = instance(Some(&wire));
        async move {
            each(&done, &requests, async |event| {
                let event: ApiGatewayV2httpRequest = serde_json::from_value(event.clone()).ok()?;
                let response = function(HttpRequest::from(event)).await;
                (!response.status.is_server_error()).then(|| client_view(&response))
            })
            .await
        }
        .boxed_local()
    };
    Ok(Case { name: function.name.into(), log: Vec::new(), call: Box::new(call), right: exactly })
}

/// The case of an archive of whole streams.
fn archive(streams: Vec<Vec<Commit>>) -> Case {
    let last = |commits: &Vec<Commit>| commits.last().cloned();
    let heads: Rc<Vec<Commit>> = Rc::new(streams.iter().filter_map(last).collect());
    let call = move |wire: Wire, done: Done| {
        let heads = Rc::clone(&heads);
        async move {
            let (log, bodies) = (World::store_at(&wire), Arc::new(bodies(&wire)));
            each(&done, &heads, async |head| {
                let mut archive = Archive::new(log.clone(), bodies.clone(), NonZeroU32::MAX);
                archive.archive(&head.stream, 1..=head.version).await.ok().map(|_| String::new())
            })
            .await
        }
        .boxed_local()
    };
    Case { name: "archive".into(), log: streams, call: Box::new(call), right: exactly }
}

fn fanout(application: &Application, streams: Vec<Vec<Commit>>) -> Case {
    let pipeline = application.pipeline();
    // The streams are interleaved, and the first two commits are duplicated.
    let mut batch: Vec<_> = streams.concat();
    batch.sort_by_key(|commit| commit.version);
    batch.extend_from_within(..batch.len().min(2));
    let call = move |wire: Wire, done: Done| {
        let batch = batch.clone();
        let pipeline = Rc::clone(&pipeline);
        async move {
            let pipeline = pipeline(&wire);
            let first = done.borrow().len();
            if first > batch.len() {
                return true;
            }
            let mut records = records(&batch[first..]);
            // The last record is unreadable, so that there is a dead letter.
            let unreadable = Unreadable {
                reason: "a test".into(),
                stream: None,
                version: None,
                event_id: None,
                sequence_number: "last".into(),
                event_source_arn: None,
            };
            records.push(Record {
                sequence_number: "last".into(),
                created: None,
                run: None,
                has_body: false,
                commit: Err(unreadable),
            });
            let failed = pipeline.fanout.handle(&records).await;
            done.borrow_mut().extend(vec![String::new(); failed.unwrap_or(records.len())]);
            failed.is_none()
        }
        .boxed_local()
    };
    Case { name: "fanout".into(), log: streams, call: Box::new(call), right: exactly }
}

fn state_view_case(application: &Application, view: &StateFunction, stream: Vec<Commit>) -> Case {
    let log = vec![stream.clone()];
    let instance = Arc::clone(&view.instance);
    let pipeline = application.pipeline();
    let call = move |wire: Wire, done: Done| {
        let stream = stream.clone();
        let projector = instance(&wire);
        let pipeline = Rc::clone(&pipeline);
        async move {
            // The fanout creates the entries of the commits over a quiet wire, whose calls do not
            // count.
            let quiet = wire.fork();
            pipeline(&quiet).fanout.handle(&records(&stream)).await;
            let entries = quiet.services().take_entries();
            each(&done, &entries, async |entry| {
                projector.project(entry.clone()).await.ok().map(|()| String::new())
            })
            .await
        }
        .boxed_local()
    };
    Case { name: view.table.into(), log, call: Box::new(call), right: exactly }
}

fn log_view_case(
    function: &LogFunction,
    name: String,
    streams: Vec<Vec<Commit>>,
    gaps: bool,
) -> Case {
    let view = function.clone();
    Case::consumer_with_gaps(&name, streams, gaps, move |wire| view.consumer(wire))
}
