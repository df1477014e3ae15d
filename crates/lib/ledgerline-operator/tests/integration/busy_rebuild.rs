//! Views are rebuilt under load. The name puts the test before all others, which run beside its
//! quiet end.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use aws_sdk_dynamodb::Client;
use futures::{StreamExt, future::join_all, stream};
use ledgerline_testing::{
    LocalStack, Tool, eventually, table,
    tank::{draw, fill, install, litres_moved_once, settled, stock_adds_up},
};
use reqwest::StatusCode;
use serde_json::json;

use crate::rebuild::{hasten, text};

/// The number of tanks, of clients that write to them at once, and of commits that each tank has at
/// least when the rebuilds begin.
const BUSY: (usize, usize, usize) = (20, 16, 12);

/// 16 clients send commands without a pause, and each second a function is killed at work.
/// Meanwhile four views are rebuilt: one of states, two of the log, and one of `$all`. At the end,
/// each view is the fold of the log, and no litre has moved twice.
#[tokio::test]
async fn views_are_rebuilt_under_load_and_no_haul_moves_its_litres_twice() {
    const KILLED: [&str; 5] =
        ["levels-projector", "readings-projector", "fills-projector", "haul", "stock-subscription"];
    let (tanks, clients, commits) = BUSY;
    let mut stack = LocalStack::start_busy(None).await;
    let client = Client::new(&ledgerline_dynamodb::sdk_config(&stack.aws_url()));
    hasten(&client, &["LevelsTable", "ReadingsTable", "FillsTable", "StockTable"]).await;
    let ids = join_all((0..tanks).map(|_| install(&stack, 1_000_000))).await;
    let filled = ids.iter().flat_map(|id| std::iter::repeat_n(id, commits - 2));
    let fills = stream::iter(filled).map(async |id| {
        let filled = fill(&stack, id, 1).await;
        // A command that lost several races is not retried, so a tank may have one commit fewer.
        assert!(is_an_answer(filled.status), "{filled:?}");
    });
    fills.buffer_unordered(16).collect::<()>().await;
    let ledger = Tool::at(&stack);

    // Clients stop writing to half of the tanks once the switch is decided. The new rows must
    // contain the last commits before the switch, because no later commit fills a gap.
    let ends = AtomicBool::new(false);
    let is_decided = AtomicBool::new(false);
    let write = async |client: usize| {
        let (mut answered, mut turn) = (0, client);
        let (ids, until) = if client.is_multiple_of(2) {
            (&ids[..tanks / 2], &is_decided)
        } else {
            (&ids[tanks / 2..], &ends)
        };
        while !until.load(Ordering::Relaxed) {
            let from = &ids[turn % ids.len()];
            let to = &ids[(turn * 7 + 3) % ids.len()];
            let answer = match turn % 4 {
                0 => fill(&stack, from, 3).await,
                1 | 2 => draw(&stack, from, 2).await,
                _ => {
                    // One of nine hauls goes to a tank that does not exist, and is returned. One of
                    // nine is refused.
                    let absent = uuid::Uuid::new_v4().to_string();
                    let to = if turn % 9 == 0 || from == to { &absent } else { to };
                    let amount = if turn % 9 == 1 { 1_000_000_000 } else { 5 };
                    let asked = json!({ "fromTankId": from, "toTankId": to, "amount": amount });
                    stack.post("/hauls", asked).await
                }
            };
            assert!(is_an_answer(answer.status), "{answer:?}");
            answered += usize::from(answer.status.is_success());
            turn += clients + 1;
        }
        answered
    };
    let killed = async {
        for function in KILLED.iter().cycle() {
            tokio::time::sleep(Duration::from_secs(1)).await;
            if ends.load(Ordering::Relaxed) {
                return;
            }
            stack.kill_instances(function);
        }
    };
    let rebuild = |view, more: &[&str]| {
        let sure = ["rebuild", "switch", view, "--write", "--yes", "--why", "a test"];
        Tool::end(ledger.start(&[&sure, more].concat()))
    };
    // The test awaits the rebuild of the stock last, because its function may take a minute.
    let stock = tokio::spawn(rebuild("Stock", &[]));
    let rebuilt = async {
        let views = [
            rebuild("Levels", &[]),
            rebuild("ReadingsProjector", &["--parts", "2"]),
            rebuild("Fills", &[]),
        ];
        let made = join_all(views).await;
        ends.store(true, Ordering::Relaxed);
        made
    };
    let decided = async {
        eventually("the switch is decided", async || {
            let query = client
                .query()
                .table_name(table("ReadingsTable"))
                .key_condition_expression("tankId = :g");
            let found =
                query.expression_attribute_values(":g", text("$generations")).send().await.unwrap();
            let is_decided = format!("{:?}", found.items()).contains("\"switch\"");
            // The results below have the reason of a rebuild that ended without a switch.
            (is_decided || ends.load(Ordering::Relaxed)).then_some(())
        })
        .await;
        is_decided.store(true, Ordering::Relaxed);
    };
    let (answered, (), (), made) =
        futures::join!(join_all((0..clients).map(write)), killed, decided, rebuilt);
    stack.quiet_from_now();
    eprintln!("{} commands were answered", answered.iter().sum::<usize>());
    let cut_off: Vec<_> = KILLED.iter().filter(|function| stack.was_cut_off(function)).collect();
    assert!(cut_off.len() >= 3, "some were killed in the middle of their work: {cut_off:?}");

    let units = made.iter().map(|(code, printed)| {
        assert_eq!(*code, 0, "{printed:?}");
        let last = printed.last().unwrap();
        ["commits", "reads", "writes"].map(|unit| last[unit].as_f64().unwrap())
    });
    let [levels, readings, fills] = units.collect::<Vec<_>>().try_into().unwrap();
    eprintln!("[commits, reads, writes]: {levels:?}, {readings:?}, {fills:?}");
    let rows = tanks as f64;
    // A row and its items in two indexes cost three units. A tank whose commits are in two pages is
    // written once more, for two units. The number of commits does not matter.
    assert!(levels[0] >= 10.0 * rows && levels[2] <= 5.0 * rows, "{levels:?}");
    // One unit for each row, and one for the position of each first commit.
    assert!(readings[2] <= readings[0], "{readings:?}");
    // A transaction costs two units for each row, and for the sum and the position of each batch.
    assert!(fills[2] <= 3.0 * fills[0], "{fills:?}");

    let ended = litres_moved_once(&stack).await;
    eprintln!("{ended:?}");
    assert!(
        ["completed", "returned", "refused"].iter().all(|phase| ended.contains_key(*phase)),
        "{ended:?}"
    );
    join_all(ids.iter().map(|id| settled(&stack, id))).await;
    let (code, _) = stock.await.unwrap();
    assert_eq!(code, 0);
    stock_adds_up(&stack).await;
    let lost = stack.logged("\"unflushed values\"").await;
    assert!(lost.is_empty(), "no metric has more values than it has room for: {lost:?}");
    assert_eq!(ledger.run(&["reconcile", "--younger", "0"]).0, 0);
}

/// Whether a client continues after this status: the command was accepted, refused, or lost races.
fn is_an_answer(status: StatusCode) -> bool {
    status.is_success() || matches!(status, StatusCode::CONFLICT | StatusCode::SERVICE_UNAVAILABLE)
}
