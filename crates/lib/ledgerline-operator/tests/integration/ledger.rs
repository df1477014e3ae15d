//! The operator's tool against a local stack: its output, its comparisons and its repairs.

use std::collections::{BTreeMap, BTreeSet};

use aws_sdk_dynamodb::types::AttributeValue;
use jiff::{SignedDuration, Timestamp};
use ledgerline::{Commit, EventLog, StreamId, contract};
use ledgerline_dynamodb::{Generations, KeyNames, Move, ViewTable};
use ledgerline_tank::views::LEVELS;
use ledgerline_testing::{
    LocalStack, Tool, eventually, table,
    tank::{draw, fill, install, litres_moved_once, settled, state},
    workspace,
};
use serde_json::{Value, json};

#[tokio::test]
async fn missing_commits_are_found_and_sent_to_the_subscriber_that_lacks_them() {
    let stack = LocalStack::start(None).await;
    let mut tanks = Vec::new();
    for _ in 0..5 {
        let id = install(&stack, 1_000).await;
        for _ in 0..2 {
            draw(&stack, &id, 10).await;
        }
        settled(&stack, &id).await;
        tanks.push(id);
    }
    let ledger = Tool::at(&stack);
    let stream = |tank: usize| format!("tank-{}", tanks[tank]);
    let clean = eventually("everything has everything", async || {
        let (code, found) = ledger.found(&[]);
        (code == 0).then_some(found)
    });
    assert!(clean.await.is_empty());

    // The row of one tank and the newest rows of two others are lost, as if their last messages
    // were lost. The row of another tank is ahead of the log.
    let client = aws_sdk_dynamodb::Client::new(&ledgerline_dynamodb::sdk_config(&stack.aws_url()));
    let text = |text: &str| AttributeValue::S(text.to_owned());
    let delete =
        client.delete_item().table_name(table("LevelsTable")).key("tankId", text(&tanks[0]));
    delete.send().await.unwrap();
    for tank in [1, 2] {
        let delete = client.delete_item().table_name(table("ReadingsTable"));
        let delete = delete.key("tankId", text(&tanks[tank]));
        delete.key("entry", text("00000000000000000004#0000")).send().await.unwrap();
    }
    let update =
        client.update_item().table_name(table("LevelsTable")).key("tankId", text(&tanks[3]));
    let update = update
        .update_expression("SET #version = :version")
        .expression_attribute_names("#version", "version");
    update
        .expression_attribute_values(":version", AttributeValue::N("9".into()))
        .send()
        .await
        .unwrap();

    let who = "LevelsProjectorFunction";
    let log = "ReadingsProjectorFunction";
    let ahead = ("ahead".to_owned(), who.to_owned(), stream(3), 9);
    let missing =
        |who: &str, tank, there| ("missing".to_owned(), who.to_owned(), stream(tank), there);
    let expected =
        BTreeSet::from([missing(who, 0, 0), missing(log, 1, 3), missing(log, 2, 3), ahead.clone()]);
    assert_eq!(ledger.found(&[]), (2, expected.clone()));
    assert_eq!(
        ledger.found(&["--since", "2020-01-01T00:00:00Z"]),
        (2, expected.clone()),
        "by what has changed"
    );
    assert_eq!(ledger.found(&["--since", "2120-01-01T00:00:00Z"]), (0, BTreeSet::new()));
    let only = ledger.found(&["--only", log]);
    assert_eq!(only, (2, BTreeSet::from([missing(log, 1, 3), missing(log, 2, 3)])));
    assert_eq!(ledger.run(&["reconcile", "--only", "Nobody"]).0, 1);
    // Young commits are ignored. Without --yes and without a terminal, the tool does not write.
    assert_eq!(ledger.run(&["reconcile", "--only", log]).0, 0);
    assert_eq!(ledger.run(&["reconcile"]).0, 2, "what is ahead is not on its way");
    assert_eq!(
        ledger.run(&["redeliver", "--missing", "--younger", "0", "--write", "--yes"]).0,
        2,
        "it wants a reason"
    );
    assert_eq!(
        ledger.run(&["redeliver", "--missing", "--younger", "0", "--write", "--why", "a test"]).0,
        1
    );
    assert_eq!(ledger.found(&[]), (2, expected));

    // The row ahead of the log is not repaired, so the exit code is 2.
    assert_eq!(
        ledger
            .run(&[
                "redeliver",
                "--missing",
                "--younger",
                "0",
                "--write",
                "--yes",
                "--why",
                "a test"
            ])
            .0,
        2
    );
    let records =
        client.scan().table_name(table("OperationsTable")).send().await.unwrap().items.unwrap();
    let kept = |name: &str| {
        records.iter().map(|record| record[name].as_s().unwrap().clone()).collect::<Vec<_>>()
    };
    assert_eq!(
        (kept("kind"), kept("why")),
        (vec!["reconcile".to_owned()], vec!["a test".to_owned()])
    );
    eventually(
        "missing commits are delivered, and the view ahead of the log is left to an operator",
        async || (ledger.found(&[]) == (2, BTreeSet::from([ahead.clone()]))).then_some(()),
    )
    .await;
    for tank in [0, 1, 2, 4] {
        settled(&stack, &tanks[tank]).await;
    }
}

#[tokio::test]
async fn lag_is_shown_and_commits_are_redelivered() {
    let stack = LocalStack::start(None).await;
    let id = install(&stack, 1_000).await;
    settled(&stack, &id).await;
    let ledger = Tool::at(&stack);
    let (code, views) = ledger.run(&["subscribers"]);
    let of = |view: &str| views.iter().find(|row| row["who"] == view).unwrap().clone();
    assert_eq!((code, &of("LevelsProjectorFunction")["of"]), (0, &json!("tank")));
    assert_eq!(of("HaulFunction")["from"], "acts");

    let lag = |arguments: &[&str]| {
        let (code, rows) = ledger.run(&[&["lag"], arguments].concat());
        let row = rows.into_iter().find(|row| row["who"] == "LevelsProjectorFunction").unwrap();
        (code, row["missing"].clone(), row["commits"].clone())
    };
    // `lag` compares only streams with entries in `$all`.
    eventually("the order has both commits", async || {
        let events = stack.get("/events").await.body;
        (events["commits"].as_array().unwrap().len() == 2).then_some(())
    })
    .await;
    assert_eq!(lag(&[]), (0, json!(0), json!(0)));
    // The row is lost, and its commits are still young.
    let client = aws_sdk_dynamodb::Client::new(&ledgerline_dynamodb::sdk_config(&stack.aws_url()));
    let delete = client.delete_item().table_name(table("LevelsTable"));
    delete.key("tankId", AttributeValue::S(id.clone())).send().await.unwrap();
    assert_eq!(lag(&[]), (0, json!(1), json!(2)));
    eventually("it is older than a second", async || {
        (lag(&["--all", "--older", "1"]) == (2, json!(1), json!(2))).then_some(())
    })
    .await;
    assert_eq!(lag(&["--since", "2120-01-01T00:00:00Z"]), (0, json!(0), json!(0)));

    // Without --write, the tool prints the number of commits that it would send.
    let stream = format!("tank-{id}");
    for arguments in
        [&["redeliver", &stream][..], &["redeliver", "--since", "2020-01-01T00:00:00Z"]]
    {
        let (code, rows) = ledger.run(arguments);
        assert_eq!((code, &rows[0]["commits"], &rows[0]["streams"]), (0, &json!(2), &json!(1)));
    }
    let (_, rows) = ledger.run(&["redeliver", &stream, "--from", "2", "--to", "2"]);
    assert_eq!(rows[0]["commits"], 1);
    assert_eq!(lag(&[]), (0, json!(1), json!(2)));
    let sure = ["--write", "--yes", "--why", "a row was lost"];
    assert_eq!(ledger.run(&[&["redeliver", &stream][..], &sure].concat()).0, 0);
    settled(&stack, &id).await;
    assert_eq!(ledger.run(&[&["redeliver", &stream, "--order"][..], &sure].concat()).0, 0);
    let records =
        client.scan().table_name(table("OperationsTable")).send().await.unwrap().items.unwrap();
    let done: BTreeSet<_> =
        records.iter().map(|record| record["what"].as_s().unwrap().clone()).collect();
    let sent = |to: &str| format!("send 2 commits of 1 streams through {to}");
    assert_eq!(done, BTreeSet::from([sent("FanoutFunction"), sent("SequencerFunction")]));
    for wrong in [
        &["redeliver", "tank-nothing"][..],
        &["redeliver", &stream, "--from", "3"],
        &["redeliver", &stream, "--from", "0"],
        &["redeliver", &stream, "--to", "3"],
    ] {
        assert_eq!(ledger.run(wrong).0, 1, "{wrong:?}");
    }
    for wrong in [&["redeliver"][..], &["redeliver", &stream, "--since", "2020-01-01T00:00:00Z"]] {
        assert_eq!(ledger.run(wrong).0, 2, "clap refuses {wrong:?}");
    }
    // A missing commit of a clock that is a year ahead is late at once.
    assert_eq!(lag(&["--all", "--older", "3600"]), (0, json!(0), json!(0)));
    let at = Timestamp::now() + SignedDuration::from_hours(365 * 24);
    let future = Commit { at, ..contract::commit(&StreamId::new("tank", "future").unwrap(), 1) };
    stack.store().append(&future, None).await.unwrap();
    assert_eq!(lag(&["--all", "--older", "3600"]), (2, json!(1), json!(1)));
}

/// Runs `doctor`. Returns its exit code, and the name and the difference of each finding.
fn wrong(ledger: &Tool, arguments: &[&str]) -> (i32, BTreeSet<(String, String)>) {
    let (code, printed) = ledger.run(&[&["doctor"], arguments].concat());
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let wrong = printed.iter().filter(|line| line["wrong"].is_string());
    (code, wrong.map(|line| (text(&line["name"]), text(&line["wrong"]))).collect())
}

#[tokio::test]
async fn doctor_finds_manifests_variables_rules_and_commits_that_do_not_fit() {
    let stack = LocalStack::start(None).await;
    install(&stack, 1_000).await;
    let ledger = Tool::at(&stack);
    assert_eq!(wrong(&ledger, &[]), (0, BTreeSet::new()));

    // The rule of another team matches an event type that the fanout does not send.
    let sdk = ledgerline_dynamodb::sdk_config(&stack.aws_url());
    let events = aws_sdk_eventbridge::Client::new(&sdk);
    let pattern = json!({ "source": ["tanks.tank"], "detail-type": ["Filled"] }).to_string();
    let rule =
        events.put_rule().name("theirs").event_bus_name("tanks-events").event_pattern(pattern);
    rule.send().await.unwrap();
    // Its queue is deleted.
    let sqs = aws_sdk_sqs::Client::new(&sdk);
    let queue = sqs.create_queue().queue_name("tap").send().await.unwrap().queue_url.unwrap();
    let arn = "arn:aws:sqs:us-east-1:000000000000:tap";
    let target = aws_sdk_eventbridge::types::Target::builder().id("tap").arn(arn).build().unwrap();
    let put = events.put_targets().rule("theirs").event_bus_name("tanks-events").targets(target);
    assert_eq!(put.send().await.unwrap().failed_entry_count, 0);
    sqs.delete_queue().queue_url(queue).send().await.unwrap();
    // An operator began a rebuild two days ago, and forgot it.
    let client = aws_sdk_dynamodb::Client::new(&sdk);
    let levels = ViewTable::new(client, table("LevelsTable"), KeyNames::from(&LEVELS));
    let at = Timestamp::now() - SignedDuration::from_hours(48);
    let by = Move { at, what: "begin".into(), ..Move::default() };
    let none = Generations::default();
    assert!(levels.compare_and_set(&none, none.begin_build(at).unwrap(), by).await.unwrap());
    // The log gets a commit that this code does not understand.
    stack.damage("tank-damaged").await;
    // The reconciler of the workspace needs a variable that the deployed one lacks.
    let template = std::fs::read_to_string(workspace().join("template.yaml")).unwrap();
    let (before, reconciler) = template.split_once("\n      tank-reconciler: '").unwrap();
    let reconciler = reconciler.replacen("\"variables\":[", "\"variables\":[\"EXTRA_TABLE\",", 1);
    let template = format!("{before}\n      tank-reconciler: '{reconciler}");
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("template.yaml"), template).unwrap();
    std::fs::copy(workspace().join("samconfig.toml"), path("samconfig.toml")).unwrap();
    let found = eventually("all of it is found", async || {
        let (code, found) = wrong(&ledger, &["--template", &path("template.yaml")]);
        (code == 2 && found.iter().any(|(name, _)| name.starts_with("tank-damaged")))
            .then_some(found)
    })
    .await;
    let has = |found: &BTreeSet<(String, String)>, name: &str, what: &str| {
        assert!(
            found.iter().any(|(of, wrong)| of == name && wrong.contains(what)),
            "{name}: {what}\n{found:#?}"
        );
    };
    has(&found, "tank-reconciler", "it is deployed differently");
    has(
        &found,
        "theirs",
        "Filled is not put on the bus: deploy with BusEvents=*, or add the types to BusEvents",
    );
    has(&found, "theirs", "its target arn:aws:sqs:us-east-1:000000000000:tap does not exist");
    has(&found, "tank-damaged 1", "");
    has(&found, "LevelsProjectorFunction", "US$ a month; run `ledger rebuild drop`");
    assert_eq!(found.len(), 5, "{found:#?}");
}

#[tokio::test]
async fn republished_state_overwrites_a_wrong_row_of_one_stream() {
    let stack = LocalStack::start(None).await;
    let id = install(&stack, 1_000).await;
    let other = install(&stack, 5).await;
    for id in [&id, &other] {
        settled(&stack, id).await;
    }
    let client = aws_sdk_dynamodb::Client::new(&ledgerline_dynamodb::sdk_config(&stack.aws_url()));
    let row = async |id: &str| {
        let get = client.get_item().table_name(table("LevelsTable"));
        get.key("tankId", AttributeValue::S(id.to_owned())).send().await.unwrap().item
    };
    let untouched = row(&other).await;
    // The row has the right version and a wrong level, so no redelivery changes it.
    let update = client.update_item().table_name(table("LevelsTable"));
    let update = update.key("tankId", AttributeValue::S(id.clone()));
    let update = update.update_expression("SET #level = :wrong");
    let update = update.expression_attribute_names("#level", "level");
    update
        .expression_attribute_values(":wrong", AttributeValue::N("7".into()))
        .send()
        .await
        .unwrap();
    let ledger = Tool::at(&stack);
    let stream = format!("tank-{id}");
    let sure = ["--write", "--yes", "--why", "a wrong row"];
    assert_eq!(ledger.run(&[&["redeliver", &stream][..], &sure].concat()).0, 0);
    assert_eq!(stack.get(&format!("/tanks/{id}")).await.body["level"], 7);

    let path = format!("/tanks/{id}/republications");
    let republish = ["command", "POST", &path, "--api", stack.url()];
    assert_eq!(ledger.run(&[&republish[..], &sure].concat()).0, 0);
    settled(&stack, &id).await;
    let shown = stack.get(&format!("/tanks/{id}?minVersion=3")).await;
    assert_eq!((shown.version(), &shown.body["level"]), (3, &json!(1_000)));
    assert_eq!(row(&other).await, untouched);
    // The key of a command whose outcome is unknown is recorded, so that the operator repeats it.
    stack.begin_outage("CommitsTable", "failed", 10).await;
    assert_eq!(ledger.run(&[&republish[..], &sure].concat()).0, 1);
    let commands = client.query().table_name(table("OperationsTable")).scan_index_forward(false);
    let commands = commands.key_condition_expression("kind = :kind");
    let commands =
        commands.expression_attribute_values(":kind", AttributeValue::S("command".into()));
    let newest = commands.send().await.unwrap().items.unwrap().swap_remove(0);
    let detail: Value = serde_json::from_str(newest["detail"].as_s().unwrap()).unwrap();
    let key = ["--key", detail["key"].as_str().unwrap()];
    for _ in 0..2 {
        eventually("the repeated command is answered", async || {
            (ledger.run(&[&republish[..], &sure, &key].concat()).0 == 0).then_some(())
        })
        .await;
    }
    // A lost row is repaired after a commit without events, as after every other commit.
    let delete = client.delete_item().table_name(table("LevelsTable"));
    delete.key("tankId", AttributeValue::S(id.clone())).send().await.unwrap();
    let repair = ["redeliver", "--missing", "--younger", "0", "--only", "LevelsProjectorFunction"];
    assert_eq!(ledger.run(&[&repair[..], &sure].concat()).0, 0);
    settled(&stack, &id).await;
    assert_eq!(ledger.run(&["dead-letters"]).0, 0);
    eventually("no view lacks the republished state", async || {
        (ledger.found(&[]) == (0, BTreeSet::new())).then_some(())
    })
    .await;
    // `ledger command` sends only commands for operators.
    let (code, commands) = ledger.run(&["command"]);
    let commands: Vec<_> = commands.iter().map(|row| row["command"].as_str().unwrap()).collect();
    assert_eq!((code, &*commands), (0, &["POST /tanks/{id}/republications"][..]));
    let api = stack.url();
    let fills = format!("/tanks/{id}/fills");
    for wrong in [
        &[
            "command",
            "POST",
            "/tanks/163082d2-b005-45d7-9eb6-aa1f83efd55d/republications",
            "--api",
            api,
        ][..],
        &["command", "POST", &fills, "--body", r#"{"amount":1}"#, "--api", api],
        &["command", "POST", &path, "--body", "30", "--api", api],
        // The tool does not know the API of a local stack at another address, and sends no token in
        // the clear.
        &["command", "POST", &path],
        &["command", "POST", &path, "--api", "http://example.com", "--token", "t"],
        &["command", "POST"],
    ] {
        assert_eq!(ledger.run(&[wrong, &sure].concat()).0, 1, "{wrong:?}");
    }
    assert_eq!(state(&stack, &id).await.0, 4, "no other commit was appended");
}

#[tokio::test]
async fn streams_commits_and_traces_are_shown_without_payloads() {
    let stack = LocalStack::start(None).await;
    let from = install(&stack, 1_000).await;
    let to = install(&stack, 0).await;
    let asked = json!({ "fromTankId": from, "toTankId": to, "amount": 30 });
    let headers = [("x-correlation-id", "the-delivery")];
    let requested = stack.post_with("/hauls", &headers, asked).await;
    assert!(requested.status.is_success(), "{requested:?}");
    assert_eq!(litres_moved_once(&stack).await, BTreeMap::from([("completed".to_owned(), 1)]));
    let ledger = Tool::at(&stack);
    let (code, streams) = ledger.run(&["streams", "--category", "haul"]);
    assert_eq!((code, streams.len(), &streams[0]["version"]), (0, 1, &json!(3)));

    let long = |from: &str| ledger.run(&["streams", "--category", "haul", "--from", from]).1.len();
    assert_eq!((long("3"), long("4")), (1, 0));
    let (_, names) = ledger.run(&["resources", "CommitsTable"]);
    assert_eq!((names.len(), &names[0]["type"]), (1, &json!("AWS::DynamoDB::Table")));
    assert!(
        names[0]["name"].as_str().unwrap().contains("CommitsTable")
            && ledger.run(&["resources"]).1.len() > 50
    );

    let (_, traced) = ledger.run(&["trace", "the-delivery"]);
    let events: Vec<_> = traced.iter().map(|commit| commit["events"].as_str().unwrap()).collect();
    assert_eq!(events[0], "HaulRequested");
    assert!(events.contains(&"TankDrawn") && events.contains(&"TankFilled"), "{events:?}");
    assert!(traced.iter().all(|commit| commit["data"].is_null()), "rule 14: {traced:?}");
    eventually("everything that follows has come to it", async || {
        let (_, traced) = ledger.run(&["trace", "the-delivery"]);
        let in_each =
            |commit: &Value| (commit["in"].as_str().unwrap().to_owned(), commit["notYetIn"] == "");
        (traced.len() == 5 && in_each(&traced[0]) == ("HaulFunction".to_owned(), true))
            .then_some(())
    })
    .await;
    let (_, with) = ledger.run(&["trace", "the-delivery", "--payloads"]);
    // The search includes the type, because a time or an id may have the same digits.
    let has_level = |rows: &[Value]| format!("{rows:?}").contains("Number(970)");
    assert!(!has_level(&traced) && has_level(&with), "{with:?}");

    let tank = format!("tank-{from}");
    let (_, shown) = ledger.run(&["show", &tank, "--at", "2", "--payloads"]);
    assert_eq!((shown.len(), &shown[2]["state"]["level"]), (3, &json!(1_000)));
    let (code, shown) = ledger.run(&["show", &tank]);
    assert_eq!((code, shown.len(), shown[2]["data"].is_null()), (0, 3, true));
    // `$all` lags behind the log by a second.
    eventually("the tail has the commits of both tanks", async || {
        let (_, tail) =
            ledger.run(&["tail", "--from", "beginning", "--once", "--category", "tank"]);
        (tail.len() == 5).then_some(())
    })
    .await;

    // Without a value, `--local` is the default address. The option does not take the subcommand as
    // its value.
    let bare = ledger.command().args(["--local", "show", "--help"]).output();
    let help = String::from_utf8(bare.unwrap().stdout).unwrap();
    assert!(help.contains("Show commits up to this version"), "the help of show: {help}");
    for wrong in [
        &["show", "tank-nothing"][..],
        &["show", "nothing"],
        &["show", &tank, "--at", "9"],
        &["trace", "x"],
        &["tail", "--from", "yesterday"],
        &["--stack", "other", "streams"],
        // A local stack has no versions of functions, and no limits.
        &["release", "list"],
        &["concurrency"],
        &["resources", "Nothing"],
    ] {
        assert_eq!(ledger.run(wrong).0, 1, "{wrong:?}");
    }
}

/// A forged record gets no entry in `$all`, and an operator can make a wrong entry void. Entries
/// are final, and an entry without a commit stops every subscription.
#[tokio::test]
async fn a_forged_record_gets_no_entry_and_a_wrong_entry_can_be_made_void() {
    // Given a tank with a row in the stock,
    let stack = LocalStack::start(None).await;
    let id = install(&stack, 100).await;
    let ledger = Tool::at(&stack);
    let invoke = async |function: &str, stream: &str| {
        let key = json!({ "stream": { "S": stream }, "version": { "N": "7" } });
        let record = json!({
            "eventID": "1", "eventName": "INSERT", "eventSourceARN": "arn:aws:dynamodb:us-east-1:000000000000:table/x/stream/1",
            "dynamodb": { "Keys": key, "NewImage": key, "SequenceNumber": "1", "SizeBytes": 1 },
        });
        let url = format!("{}/2015-03-31/functions/{function}/invocations", stack.aws_url());
        let body = json!({ "Records": [record] }).to_string();
        let answer = reqwest::Client::new().post(url).body(body).send().await.unwrap();
        assert_eq!(answer.json::<Value>().await.unwrap(), json!({ "batchItemFailures": [] }));
    };
    let last = async || stack.get("/stock").await.body["stock"]["number"].clone();
    let counted = async |number: u64| {
        let what = format!("the stock has row {number}");
        eventually(&what, async || (last().await == number).then_some(())).await;
    };
    counted(1).await;
    // when an operator sends a record of a commit that the log lacks, as the stream would,
    invoke("SequencerFunction", "tank-forged").await;
    fill(&stack, &id, 1).await;
    // then it gets no entry.
    counted(2).await;
    let clean = async || (ledger.found(&[]) == (0, BTreeSet::new())).then_some(());
    eventually("nothing is missing or ahead", clean).await;

    // When `$all` has such an entry nevertheless, because of a faulty program,
    invoke("SequencerFunction:live", "tank-wrong").await;
    fill(&stack, &id, 1).await;
    let ahead = (2, BTreeSet::from([("ahead".into(), "$all".into(), "tank-wrong".into(), 7)]));
    eventually("the order is ahead of the log, and nothing else is wrong", async || {
        (ledger.found(&["--only", "$all"]) == ahead).then_some(())
    })
    .await;
    assert_eq!(last().await, 2, "the subscription stops");
    // then only an entry without a commit can be made void, with a reason,
    let void = |stream: &str, version: &str, sure: &[&str]| {
        ledger.run(&[&["order", "void", stream, version], sure].concat())
    };
    let sure = ["--write", "--yes", "--why", "a faulty program"];
    assert_eq!(void(&format!("tank-{id}"), "1", &sure).0, 1);
    assert_eq!(void("tank-wrong", "7", &["--write", "--yes"]).0, 2);
    assert_eq!(
        void("tank-wrong", "7", &[]).1[0]["is"],
        "not in the log: --write makes its entry void"
    );
    assert_eq!(last().await, 2);
    assert_eq!(void("tank-wrong", "7", &sure).1[0]["is"], "void");
    assert_eq!(void("tank-wrong", "7", &sure).1[0]["is"], "void already");
    // and every reader continues after it.
    counted(3).await;
    eventually("nothing is missing or ahead", clean).await;
    let events = stack.get("/events?limit=100").await.body;
    assert_eq!(events["commits"].as_array().unwrap().len(), 4);
}
