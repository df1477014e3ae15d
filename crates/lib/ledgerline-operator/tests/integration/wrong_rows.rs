//! Rows that the deployed code would not write are named, and no others.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use aws_sdk_dynamodb::{Client, types::AttributeValue};
use futures::future::join_all;
use ledgerline::{
    Aggregate, Changes, ChangesError, Commit, LogView, decode,
    testing::tank::{Event, State, Tank},
    view_store::StateRowStore,
};
use ledgerline_dynamodb::StateRows;
use ledgerline_lambda::{log_projector::LogProjector, queue::Consumer};
use ledgerline_tank::views::{
    FILLS, FILLS_VIEW, LEVELS, Level, READINGS, READINGS_VIEW, fill as fill_row, level, readings_of,
};
use ledgerline_testing::{
    LocalStack, Tool, eventually, table,
    tank::{draw, fill, install, log, settled, state},
};
use serde_json::{Value, json};

/// Streams, their rows, and the fields that differ; a whole row has no field.
type RowFields = BTreeSet<(String, String, String)>;

/// Runs the tool as an operator who may invoke functions.
async fn run(stack: &LocalStack, arguments: &[&str]) -> (i32, Vec<Value>) {
    Tool::end(Tool::at(stack).start_as("OperatorPolicy", arguments)).await
}

/// Returns the printed value of this kind.
fn only<'p>(printed: &'p [Value], what: &str) -> &'p Value {
    printed.iter().find(|line| line["what"] == what).unwrap_or_else(|| panic!("{printed:?}"))
}

fn differences(printed: &[Value]) -> RowFields {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let found = printed.iter().filter(|line| line["what"] == "difference");
    let named = |line: &Value| (text(&line["stream"]), text(&line["row"]), text(&line["field"]));
    found.map(named).collect()
}

/// Deletes everything that a table has of a tank.
async fn delete_rows(client: &Client, table: &str, id: &str) {
    for partition in [id.to_owned(), format!("tank-{id}")] {
        let query = client.query().table_name(table).key_condition_expression("tankId = :id");
        let query = query.expression_attribute_values(":id", AttributeValue::S(partition));
        for mut item in query.send().await.unwrap().items.unwrap() {
            item.retain(|name, _| ["tankId", "entry"].contains(&name.as_str()));
            client.delete_item().table_name(table).set_key(Some(item)).send().await.unwrap();
        }
    }
}

/// Writes the rows of a tank by a wrong projector.
async fn project(stack: &LocalStack, client: &Client, id: &str, view: LogView) {
    let name = if view.table == FILLS { "FillsTable" } else { "ReadingsTable" };
    delete_rows(client, &table(name), id).await;
    let projector = LogProjector::new(client.clone(), table(name), view);
    for commit in log(stack, id).await {
        projector.apply(&commit).await.unwrap();
    }
}

/// Returns the changes of the fills, with each event edited by `change`.
fn change_fills(
    commit: &Commit,
    change: impl Fn(Event) -> Option<Event>,
) -> Result<Changes, ChangesError> {
    let mut changes = Changes::new(FILLS);
    for (place, recorded) in commit.events.iter().enumerate() {
        if let Some(event) = change(decode::<Tank>(recorded)?) {
            fill_row(commit, place, &event, &mut changes)?;
        }
    }
    Ok(changes)
}

fn constant(commit: &Commit) -> Result<Changes, ChangesError> {
    change_fills(commit, |mut event| {
        if let Event::TankFilled { amount, .. } = &mut event {
            *amount = 1;
        }
        Some(event)
    })
}

fn sign(commit: &Commit) -> Result<Changes, ChangesError> {
    change_fills(commit, |event| {
        let Event::TankDrawn { amount, level, note, on } = event else { return Some(event) };
        Some(Event::TankFilled { amount, level, note, on })
    })
}

fn missing_event(commit: &Commit) -> Result<Changes, ChangesError> {
    change_fills(commit, |event| {
        Some(event).filter(|event| !matches!(event, Event::TankDrawn { .. }))
    })
}

fn wrong_key(commit: &Commit) -> Result<Changes, ChangesError> {
    let mut other = commit.clone();
    other.stream = Tank::stream(&commit.stream.id().replace('-', "")).unwrap();
    change_fills(&other, Some)
}

fn doubled_sum(commit: &Commit) -> Result<Changes, ChangesError> {
    let mut changes = change_fills(commit, Some)?;
    if let Event::TankFilled { amount, .. } = decode::<Tank>(&commit.events[0])? {
        changes.add(commit.stream.id(), "sum", "filled", amount);
    }
    Ok(changes)
}

fn additional_field(commit: &Commit) -> Result<Changes, ChangesError> {
    let mut changes = change_fills(commit, Some)?;
    changes.set(commit.stream.id(), "sum", "average", 7);
    Ok(changes)
}

fn swapped_fields(commit: &Commit) -> Result<Changes, ChangesError> {
    let mut changes = Changes::new(READINGS);
    for mut row in readings_of(commit)? {
        (row.level, row.amount) = (row.amount, row.level);
        changes.insert(commit, &row)?;
    }
    Ok(changes)
}

fn wrong_version(commit: &Commit) -> Result<Changes, ChangesError> {
    let mut changes = Changes::new(READINGS);
    for mut row in readings_of(commit)? {
        row.version -= 1;
        changes.insert(commit, &row)?;
    }
    Ok(changes)
}

/// The row that a wrong projector of states writes in place of this one.
type WrongRow = fn(Level) -> Option<Level>;

/// Writes the row of a tank by a wrong projector of states. Without a row, the view forgets it.
async fn put_wrong_row(stack: &LocalStack, client: &Client, id: &str, row: WrongRow) {
    let key = AttributeValue::S(id.to_owned());
    client.delete_item().table_name(table("LevelsTable")).key("tankId", key).send().await.unwrap();
    let (version, state) = state(stack, id).await;
    let installed = match state {
        State::Scrapped(tank) => State::Installed(tank),
        State::Absent | State::Installed(_) => state,
    };
    let rows = StateRows::new(client.clone(), table("LevelsTable"), LEVELS);
    match row(level(id, version, installed).unwrap()) {
        Some(row) => rows.put_newer(&row, version).await.unwrap(),
        None => rows.forget(id, version, i64::MAX >> 1).await.unwrap(),
    };
}

/// Installs a tank, fills it twice, draws from it, and waits until every view shows it.
async fn use_tank(stack: &LocalStack) -> String {
    let id = install(stack, 100).await;
    fill(stack, &id, 5).await;
    draw(stack, &id, 3).await;
    settled(stack, &id).await;
    id
}

/// The three rows of amounts, with this field.
fn amounts(field: &str) -> Vec<(String, String)> {
    (2..=4).map(|version| (format!("{version:020}#0000"), field.to_owned())).collect()
}

/// A wrong projector writes rows of each tank, and the deployed function is a correct one.
#[tokio::test]
async fn rows_of_each_wrong_projector_are_named_and_no_others() {
    let stack = LocalStack::start(None).await;
    let client = Client::new(&ledgerline_dynamodb::sdk_config(&stack.aws_url()));
    let fills = |changes| LogView { changes, ..FILLS_VIEW };
    let readings = |changes| LogView { changes, ..READINGS_VIEW };
    let sum = |field: &str| ("sum".to_owned(), field.to_owned());
    let all_rows = [amounts(""), vec![sum("")]].concat();
    let log_cases: [(LogView, Vec<(String, String)>); 8] = [
        (fills(constant), [amounts("amount")[..2].to_vec(), vec![sum("filled")]].concat()),
        (fills(sign), vec![amounts("amount")[2].clone(), sum("filled")]),
        (fills(missing_event), amounts("")[2..].to_vec()),
        (fills(wrong_key), all_rows),
        (fills(doubled_sum), vec![sum("filled")]),
        (fills(additional_field), vec![sum("average")]),
        (readings(swapped_fields), [&amounts("amount")[1..], &amounts("level")[1..]].concat()),
        (readings(wrong_version), amounts("version")),
    ];
    let state_cases: [(WrongRow, &str); 4] = [
        (|row| Some(Level { level: -row.level, ..row }), "level"),
        (|row| Some(Level { installed_by: None, ..row }), "installedBy"),
        // The key is wrong, or the row is forgotten: there is none.
        (|row| Some(Level { tank_id: row.tank_id.replace('-', ""), ..row }), ""),
        (|_| None, ""),
    ];
    let mut expected = [RowFields::new(), RowFields::new(), RowFields::new()];
    let ids = join_all((0..log_cases.len() + state_cases.len()).map(|_| use_tank(&stack))).await;
    for (id, (view, rows)) in ids.iter().zip(&log_cases) {
        project(&stack, &client, id, *view).await;
        let named = rows
            .iter()
            .map(|(row, field)| (format!("tank-{id}"), format!("{id} {row}"), field.clone()));
        expected[usize::from(view.table == READINGS)].extend(named);
    }
    for (id, (row, field)) in ids[log_cases.len()..].iter().zip(state_cases) {
        put_wrong_row(&stack, &client, id, row).await;
        expected[2].insert((format!("tank-{id}"), id.clone(), field.to_owned()));
    }
    // A deletion is forgotten.
    let scrapped = install(&stack, 0).await;
    let path = format!("/tanks/{scrapped}");
    let shown = async |what: &str, status: u16| {
        eventually(what, async || (stack.get(&path).await.status == status).then_some(())).await;
    };
    shown("the level is there", 200).await;
    stack.post(&format!("{path}/scrap"), json!({})).await;
    shown("the level is forgotten", 404).await;
    put_wrong_row(&stack, &client, &scrapped, Some).await;
    expected[2].insert((format!("tank-{scrapped}"), scrapped.clone(), String::new()));

    for (view, expected) in ["Fills", "Readings", "Levels"].iter().zip(&expected) {
        let all = ["reconcile", "--only", "$all", "--younger", "0", "--values", view, "--all"];
        let (code, printed) = run(&stack, &all).await;
        assert_eq!((code, &differences(&printed)), (2, expected), "{view}");
        let counts = only(&printed, "values");
        assert_eq!((&counts["busy"], &counts["notCompared"]), (&json!(0), &json!(0)), "{counts}");
        assert!(counts["reads"].as_f64().unwrap() >= ids.len() as f64, "{counts}");
    }
    let printed = run(&stack, &["reconcile", "--values", "Fills", "--all"]).await.1;
    let doubled = printed.iter().find(|line| line["stream"] == format!("tank-{}", ids[4]));
    let doubled = doubled.unwrap();
    assert_eq!((&doubled["expected"], &doubled["stored"]), (&json!(105), &json!(210)));

    check_sample(&stack, &ids, expected[0].len()).await;
    check_rows_of_stream(&stack, &ids[4]).await;
}

/// A sample does not know whether other streams write a row that is no insertion.
async fn check_sample(stack: &LocalStack, ids: &[String], wrong: usize) {
    let printed = run(stack, &["reconcile", "--values", "Fills", "--sample", "1000"]).await.1;
    assert_eq!(differences(&printed), RowFields::new());
    let skipped = only(&printed, "notCompared");
    assert_eq!(skipped["count"], wrong, "{skipped}");
    assert!(skipped["reason"].as_str().unwrap().contains("--all"), "{skipped}");
    let printed = run(stack, &["reconcile", "--values", "Stock"]).await.1;
    assert_eq!(only(&printed, "notCompared")["count"], ids.len() + 1);
}

/// The rows of one tank are those of the wrong projector. An operator who may only read gets the
/// rest of the report.
async fn check_rows_of_stream(stack: &LocalStack, id: &str) {
    let show = ["show", "--rows", &format!("tank-{id}")];
    let (code, rows) = run(stack, &show).await;
    let filled = rows.iter().find(|row| row["row"] == format!("{id} sum")).unwrap();
    assert_eq!((code, &filled["fields"]["filled"]), (0, &json!(210)), "{rows:?}");
    assert_eq!(rows.iter().filter(|row| !row["row"].is_null()).count(), 8, "{rows:?}");

    let reader = Tool::at(stack);
    let (code, printed) = reader.run(&["reconcile", "--values", "Levels"]);
    let reason = &only(&printed, "unknown")["reason"];
    assert_eq!((code, reason), (2, &json!("unknown: needs OperatorPolicy")));
    assert!(printed.iter().filter(|line| line["what"] == "compared").count() > 4);
    let (code, rows) = reader.run(&show);
    let unknown = rows.iter().filter(|row| row["reason"] == "unknown: needs OperatorPolicy");
    assert_eq!((code, unknown.count()), (2, 3), "{rows:?}");
}

/// Compares all views for this time, under load and redelivery.
async fn no_row_differs_under_load(time: Duration) {
    let stack = LocalStack::start_busy(None).await;
    let ids = join_all((0..8).map(|_| install(&stack, 100))).await;
    let until = Instant::now() + time;
    let load = ids.iter().map(async |id| {
        while Instant::now() < until {
            fill(&stack, id, 2).await;
            draw(&stack, id, 1).await;
            // Otherwise each comparison of each row would find that its stream has changed.
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    });
    let redelivery = async {
        while Instant::now() < until {
            let stream = format!("tank-{}", ids[0]);
            let write = ["redeliver", &stream, "--write", "--yes", "--why", "a test"];
            assert_eq!(Tool::end(Tool::at(&stack).start(&write)).await.0, 0);
        }
    };
    let comparison = async {
        let mut rows = BTreeMap::<&str, u64>::new();
        while Instant::now() < until {
            for view in ["Levels", "Readings", "Fills"] {
                for scope in [&["--all"][..], &["--sample", "4"]] {
                    let arguments = [&["reconcile", "--values", view], scope].concat();
                    let (_, printed) = run(&stack, &arguments).await;
                    let counts = only(&printed, "values");
                    assert_eq!(counts["differences"], 0, "{printed:?}");
                    *rows.entry(view).or_default() += counts["rows"].as_u64().unwrap();
                }
            }
        }
        rows
    };
    let (_, (), rows) = futures::join!(join_all(load), redelivery, comparison);
    // Each view has rows that did not change while they were compared.
    assert!(rows.len() == 3 && rows.values().all(|rows| *rows > 0), "{rows:?}");
    for id in &ids {
        settled(&stack, id).await;
    }
    for view in ["Levels", "Readings", "Fills"] {
        let (code, printed) = run(&stack, &["reconcile", "--values", view, "--all"]).await;
        let counts = only(&printed, "values");
        assert_eq!((code, &counts["busy"]), (0, &json!(0)), "{counts}");
    }
}

#[tokio::test]
async fn no_row_differs_while_commits_are_applied_and_redelivered() {
    no_row_differs_under_load(Duration::from_secs(5)).await;
}

/// The same test for an hour: `cargo test --profile fast -p ledgerline-operator --test integration
/// hour_of_load -- --ignored`.
#[tokio::test]
#[ignore = "it takes an hour"]
async fn no_row_differs_in_an_hour_of_load_and_redelivery() {
    no_row_differs_under_load(Duration::from_secs(3_600)).await;
}
