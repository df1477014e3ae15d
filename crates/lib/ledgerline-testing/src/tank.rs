//! Requests to the application on a local stack, and the conditions that hold once it has settled.

use std::collections::BTreeMap;

use ledgerline::{
    Aggregate, Commit, Consistency, decode, fold, load,
    testing::tank::{State, Tank},
};
use ledgerline_dynamodb::{LogRows, PageQuery};
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::{Answer, Api, LocalStack, category_commits, eventually, table};
use ledgerline_tank::{
    haul::{Haul, Phase},
    views::{FILLS, level, readings_of},
};

/// Installs a tank and fills it to this level, unless that is 0. Returns its id.
pub async fn install(api: &Api, level: i64) -> String {
    let installed = api.post("/tanks", json!({ "site": "North", "liquid": "water" })).await;
    assert_eq!(installed.status, StatusCode::CREATED, "{installed:?}");
    let id = installed.body["tankId"].as_str().unwrap().to_owned();
    if level > 0 {
        let filled = fill(api, &id, level).await;
        assert_eq!(filled.status, StatusCode::OK, "{filled:?}");
    }
    id
}

/// Fills this amount into a tank.
pub async fn fill(api: &Api, id: &str, amount: i64) -> Answer {
    api.post(&format!("/tanks/{id}/fills"), json!({ "amount": amount })).await
}

/// Draws this amount from a tank.
pub async fn draw(api: &Api, id: &str, amount: i64) -> Answer {
    api.post(&format!("/tanks/{id}/draws"), json!({ "amount": amount })).await
}

/// Requests a haul, and returns its id.
pub async fn haul(api: &Api, from: &str, to: &str, amount: i64) -> String {
    let body = json!({ "fromTankId": from, "toTankId": to, "amount": amount });
    let requested = api.post("/hauls", body).await;
    assert_eq!(requested.status, StatusCode::CREATED, "{requested:?}");
    requested.body["haulId"].as_str().unwrap().to_owned()
}

/// Returns the commits of a tank, the oldest first.
pub async fn log(stack: &LocalStack, id: &str) -> Vec<Commit> {
    crate::commits(&stack.store(), &Tank::stream(id).unwrap()).await
}

/// Returns the version and the state of a tank, from the log.
pub async fn state(stack: &LocalStack, id: &str) -> (u64, State) {
    let stream = Tank::stream(id).unwrap();
    let loaded = load::<Tank>(&stack.store(), &stream, None, Consistency::Strong).await.unwrap();
    (loaded.version, loaded.state)
}

/// Waits until the level, the readings and the fills of a tank show the fold of the log, row by
/// row.
pub async fn settled(stack: &LocalStack, id: &str) {
    let (version, state) = state(stack, id).await;
    let commits = log(stack, id).await;
    assert_eq!(commits.len() as u64, version, "versions have no holes");
    let shown = eventually("the level is shown", async || {
        let answer = stack.get(&format!("/tanks/{id}")).await;
        (answer.body["version"].as_u64() == Some(version)).then_some(answer.body)
    })
    .await;
    let mut expected = json!(level(id, version, state));
    // The API does not show the installer.
    expected.as_object_mut().unwrap().remove("installedBy");
    assert_eq!(shown, expected);

    eventually("the readings are shown", async || {
        let answer = stack.get(&format!("/tanks/{id}/readings")).await;
        (answer.etag_version() == Some(version)).then_some(())
    })
    .await;
    let mut shown = stack.list(&format!("/tanks/{id}/readings?limit=100"), "readings").await;
    shown.reverse();
    let rows: Vec<_> = commits.iter().flat_map(|commit| readings_of(commit).unwrap()).collect();
    let compared = |row: &Value| json!([row["version"], row["amount"], row["level"], row["at"]]);
    let expected: Vec<_> = rows.iter().map(|row| compared(&json!(row))).collect();
    assert_eq!(shown.iter().map(compared).collect::<Vec<_>>(), expected);

    let mut expected: Vec<_> = rows.iter().map(|row| json!([row.entry, row.amount])).collect();
    let sum: i64 = rows.iter().map(|row| row.amount.max(0)).sum();
    if sum > 0 {
        expected.push(json!(["sum", sum]));
    }
    eventually("the fills are listed and added up", async || {
        (fills(stack, id).await == expected).then_some(())
    })
    .await;
}

/// Returns the rows of a tank in the active generation of the fills: the sort key of each, and its
/// amount or the sum.
async fn fills(stack: &LocalStack, id: &str) -> Vec<Value> {
    let client = aws_sdk_dynamodb::Client::new(&ledgerline_dynamodb::sdk_config(&stack.aws_url()));
    let table = LogRows::new(client, table("FillsTable"), FILLS);
    let (mut rows, mut cursor) = (Vec::new(), None::<String>);
    loop {
        let query = PageQuery::new(id, 200, cursor.as_deref());
        let page = table.page::<Value>(&query).await.unwrap();
        for row in page.rows {
            let row = row.unwrap();
            let number = if row["entry"] == "sum" { &row["filled"] } else { &row["amount"] };
            rows.push(json!([row["entry"], number]));
        }
        cursor = page.cursor;
        if cursor.is_none() {
            return rows;
        }
    }
}

/// Waits until every haul has ended, and checks in the log that each haul moved its litres once. A
/// haul moves them from the first tank to the second, or returns them, or is refused. No litre may
/// appear or disappear by itself. Returns the number of hauls in each final phase.
pub async fn litres_moved_once(stack: &LocalStack) -> BTreeMap<String, usize> {
    let ended = eventually("every haul has ended", async || {
        let commits = category_commits(stack, Haul::CATEGORY).await;
        let hauls = commits.chunk_by(|one, next| one.stream == next.stream).map(|commits| {
            let events = commits.iter().flat_map(|commit| &commit.events);
            let events: Vec<_> = events.map(|event| decode::<Haul>(event).unwrap()).collect();
            let state = fold::<Haul>(Default::default(), &events);
            state.awaits().is_none().then(|| (commits[0].stream.to_string(), state.phase))
        });
        hauls.collect::<Option<BTreeMap<_, _>>>()
    })
    .await;
    let mut moved = BTreeMap::<&str, Vec<i64>>::new();
    let mut by_callers = 0;
    let mut levels = BTreeMap::new();
    let commits = category_commits(stack, Tank::CATEGORY).await;
    for commit in &commits {
        let cause = commit.meta.causation_id.as_deref().and_then(|cause| cause.rsplit_once(':'));
        let haul = cause.map(|(haul, _)| haul).filter(|haul| ended.contains_key(*haul));
        for row in readings_of(commit).unwrap() {
            match haul {
                Some(haul) => moved.entry(haul).or_default().push(row.amount),
                None => by_callers += row.amount,
            }
            levels.insert(row.tank_id, row.level);
        }
    }
    let mut phases = BTreeMap::new();
    for (haul, phase) in &ended {
        let amounts = moved.remove(haul.as_str()).unwrap_or_default();
        let expected = match phase {
            Phase::Completed | Phase::Returned => 2,
            Phase::Refused => 0,
            Phase::Requested | Phase::Drawn | Phase::Returning | Phase::Stuck => {
                panic!("{haul} is {phase:?}")
            }
        };
        assert_eq!((amounts.len(), amounts.iter().sum::<i64>()), (expected, 0), "{haul}");
        *phases.entry(format!("{phase:?}").to_lowercase()).or_default() += 1;
    }
    assert_eq!(levels.values().sum::<i64>(), by_callers, "no litre came or went by itself");
    phases
}

/// Waits until the stock has a row for each reading of the log, and checks that it adds up at each
/// row.
pub async fn stock_adds_up(stack: &LocalStack) {
    let mut expected = BTreeMap::new();
    for commit in category_commits(stack, Tank::CATEGORY).await {
        let cause = commit.meta.causation_id.as_deref().unwrap_or_default();
        let of_a_haul = cause.starts_with("haul-");
        for row in readings_of(&commit).unwrap() {
            expected.insert((row.tank_id, row.version), of_a_haul);
        }
    }
    let rows = eventually("the stock has every reading", async || {
        let rows = stack.list("/stock?limit=100", "rows").await;
        (rows.len() >= expected.len()).then_some(rows)
    })
    .await;
    let (mut levels, mut under_way) = (BTreeMap::<&str, i64>::new(), 0);
    for (number, row) in (1_u64..).zip(&rows) {
        let tank = row["tankId"].as_str().unwrap();
        let version = row["version"].as_u64().unwrap();
        let of_a_haul =
            expected.remove(&(tank.to_owned(), version)).expect("each reading has one row");
        let amount = row["amount"].as_i64().unwrap();
        under_way -= if of_a_haul { amount } else { 0 };
        *levels.entry(tank).or_default() += amount;
        assert_eq!(row["level"], levels[tank], "each tank is in its order: {row}");
        let in_tanks = levels.values().sum::<i64>();
        let stock = json!({ "number": number, "inTanks": in_tanks, "underWay": under_way });
        assert_eq!(row["stock"], stock, "{row}");
    }
    assert_eq!((expected.len(), under_way), (0, 0), "nothing is missing or under way");
}
