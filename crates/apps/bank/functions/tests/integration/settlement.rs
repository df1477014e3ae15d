//! An operator settles a stuck transfer with the tool.

use aws_sdk_dynamodb::Client;
use bank::transfer::{self, Transfer};
use ledgerline::{Aggregate, Commit, EventLog, Meta, encode};
use ledgerline_testing::{LocalStack, Tool, eventually, table};
use serde_json::json;

use crate::accounts::{assert_transactions, open_account};

/// Appends a stuck transfer, as its process manager leaves it: neither account accepts the money.
/// Returns the transfer's id.
async fn stuck(bank: &LocalStack, from: &str, to: &str) -> String {
    let refused = || "account-closed".to_owned();
    let events = [
        transfer::Event::TransferRequested {
            from_account_id: from.to_owned(),
            to_account_id: to.to_owned(),
            amount: 30,
            currency: "EUR".to_owned(),
            reference: None,
            requested_by: Some("developer".to_owned()),
        },
        transfer::Event::TransferDebited {},
        transfer::Event::TransferCreditRefused { reason: refused() },
        transfer::Event::TransferRefundRefused { reason: refused() },
    ];
    let id = uuid::Uuid::now_v7().to_string();
    let commit = Commit {
        stream: Transfer::stream(&id).unwrap(),
        version: 1,
        events: events.iter().map(|event| encode::<Transfer>(event).unwrap()).collect(),
        state: None,
        command: id.clone(),
        at: jiff::Timestamp::now(),
        meta: Meta::default(),
    };
    bank.store().append(&commit, None).await.unwrap();
    id
}

#[tokio::test]
async fn an_operator_settles_a_stuck_transfer_by_a_command_with_a_reason() {
    let bank = LocalStack::start(None).await;
    let from = open_account(&bank, 0).await;
    let to = open_account(&bank, 0).await;
    let other = open_account(&bank, 5).await;
    let id = stuck(&bank, &from, &to).await;
    let status = async |wanted: &str| {
        eventually(wanted, async || {
            let shown = bank.get(&format!("/transfers/{id}")).await.body;
            (shown["status"] == wanted).then_some(shown)
        })
        .await
    };
    status("stuck").await;
    let ledger = Tool::at(&bank);
    let api = bank.url();
    let (code, commands) = ledger.run(&["command"]);
    let commands: Vec<_> = commands.iter().map(|row| row["command"].as_str().unwrap()).collect();
    assert_eq!(
        (code, &*commands),
        (0, &["POST /accounts/{id}/republications", "POST /transfers/{id}/settlements"][..])
    );

    let path = format!("/transfers/{id}/settlements");
    let body = json!({ "toAccountId": other }).to_string();
    let command = ["command", "POST", &path, "--body", &body, "--api", api];
    let sure = ["--write", "--yes", "--why", "agreed with the customer"];
    assert_eq!(ledger.run(&command).0, 0, "it says what it would send");
    assert_eq!(bank.get(&format!("/transfers/{id}")).await.body["status"], "stuck");
    assert_eq!(ledger.run(&[&command[..], &sure].concat()).0, 0);
    let shown = status("settled").await;
    assert_eq!(shown["settledToAccountId"], other.as_str());
    assert_transactions(&bank, &other, 3).await;
    let balance =
        async || bank.get(&format!("/accounts/{other}")).await.body["totalBalance"].clone();
    assert_eq!(balance().await, 35);
    // The log has the operator and the reason, and so does the tool's record.
    let (_, log) = ledger.run(&["show", &format!("transfer-{id}"), "--payloads"]);
    let decided =
        log.iter().find(|commit| commit["events"] == "TransferSettlementRequested").unwrap();
    assert_eq!(decided["data"][0]["reason"], "agreed with the customer");
    assert_eq!(decided["data"][0]["requestedBy"], "developer");
    let client = Client::new(&ledgerline_dynamodb::sdk_config(&bank.aws_url()));
    let records =
        client.scan().table_name(table("OperationsTable")).send().await.unwrap().items.unwrap();
    let done: Vec<_> =
        records.iter().map(|record| record["what"].as_s().unwrap().as_str()).collect();
    assert_eq!(done, [format!("POST {path}")]);

    // The decision is final, and the tool refuses every other command.
    let elsewhere = json!({ "toAccountId": to }).to_string();
    let again = ["command", "POST", &path, "--body", &elsewhere, "--api", api];
    assert_eq!(ledger.run(&[&again[..], &sure].concat()).0, 1);
    let credits = format!("/accounts/{other}/credits");
    for wrong in [
        &["command", "POST", &credits, "--body", r#"{"amount":1}"#, "--api", api][..],
        &["command", "POST", &path, "--body", "30", "--api", api],
        // The tool does not know which API belongs to a local stack at another address, and it
        // sends no token in plain text.
        &["command", "POST", &path, "--body", &elsewhere],
        &[
            "command",
            "POST",
            &path,
            "--body",
            &elsewhere,
            "--api",
            "http://example.com",
            "--token",
            "t",
        ],
        &["command", "POST", &path, "--body", "{}", "--api", api],
        &["command", "POST"],
    ] {
        assert_eq!(ledger.run(&[wrong, &sure].concat()).0, 1, "{wrong:?}");
    }
    assert_eq!(balance().await, 35);
}
