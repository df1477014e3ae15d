//! Transfers against real tables. The tests interrupt a transfer after every call, redeliver its
//! commits, and send other commands to its accounts. Money is conserved, and every transfer ends.

use std::num::NonZeroUsize;

use aws_sdk_dynamodb::{
    Client,
    config::{Builder, retry::RetryConfig},
};
use bank::{
    account::{self, Account, Booking},
    transfer::{self, Transfer},
    views::transfers::Status,
};
use bank_functions::process_managers::transfer::Transfers;
use ledgerline::{
    Aggregate, Cache, Consistency, Context, EventLog, Execution, Meta, StreamId, execute, load,
    spec::valid,
};
use ledgerline_dynamodb::{DynamoDbStore, LogRows};
use ledgerline_lambda::{
    messages::Message,
    process_manager::{POSITIONS, ProcessManager},
    queue::QueueRunner,
};
use ledgerline_local::services::DynamoDb;
use ledgerline_testing::{Crash, Wire};

struct Bank {
    dynamodb: DynamoDb,
    crash: Crash,
    wire: Wire,
}

type Manager = QueueRunner<DynamoDbStore, ProcessManager<Transfers<DynamoDbStore>>>;

impl Bank {
    async fn new() -> Self {
        let tables = ["CommitsTable", "RequestsTable", "TransferPositionsTable"];
        Self {
            dynamodb: ledgerline_testing::dynamodb(&tables).await,
            crash: Crash::default(),
            wire: Wire::default(),
        }
    }

    fn store_of(&self, client: Client) -> DynamoDbStore {
        DynamoDbStore::new(client, ledgerline_testing::table("CommitsTable"))
            .with_requests(ledgerline_testing::table("RequestsTable"))
    }

    fn store(&self) -> DynamoDbStore {
        self.store_of(Client::new(&self.dynamodb.sdk_config()))
    }

    /// Returns a cold instance of the function.
    fn manager(&self) -> Manager {
        let config = Builder::from(&self.dynamodb.sdk_config())
            .retry_config(RetryConfig::disabled())
            .interceptor(self.crash.clone())
            .interceptor(self.wire.clone());
        let client = Client::from_conf(config.build());
        let positions = LogRows::new(
            client.clone(),
            ledgerline_testing::table("TransferPositionsTable"),
            POSITIONS,
        );
        let reaction = Transfers::new(self.store_of(client.clone()));
        QueueRunner {
            store: self.store_of(client),
            consumer: ProcessManager { positions, reaction },
        }
    }

    async fn send<A: Aggregate>(&self, stream: &StreamId, command: A::Command, id: &str) {
        let context = Context { at: jiff::Timestamp::now(), actor: Some("ada".into()) };
        let meta = Meta::default();
        let execution = Execution::<A>::new(stream, &command, &context, id, &meta);
        let cache = Cache::new(NonZeroUsize::MIN);
        assert!(
            execute(&self.store(), &cache, &DynamoDbStore::HOST, &execution).await.is_ok(),
            "{id}"
        );
    }

    async fn open(&self, id: &str, currency: &str, balance: i64) {
        let open = account::Command::Open(valid("Ada"), valid(currency));
        self.send::<Account>(&account(id), open, &format!("open-{id}")).await;
        if balance > 0 {
            self.credit(id, balance).await;
        }
    }

    async fn credit(&self, id: &str, amount: i64) {
        let command = account::Command::Credit(Booking { amount: valid(amount), reference: None });
        self.send::<Account>(&account(id), command, &uuid::Uuid::now_v7().to_string()).await;
    }

    async fn request(&self, from: &str, to: &str, amount: i64) {
        let command = request_command(from, to, amount);
        self.send::<Transfer>(&the_transfer(), command, "request").await;
    }

    /// Delivers the commits of the transfer one after the other, up to the head. Returns whether
    /// the function applied all of them.
    async fn deliver(&self, manager: &Manager) -> bool {
        for version in 1.. {
            let Some(commit) = self.store().get(&the_transfer(), version).await.unwrap() else {
                return true;
            };
            let body = serde_json::to_string(&Message::Commit(Box::new(commit))).unwrap();
            if manager.message(&body).await.is_err() {
                return false;
            }
        }
        unreachable!()
    }

    async fn deliver_version(&self, version: u64) -> bool {
        let commit = self.store().get(&the_transfer(), version).await.unwrap().unwrap();
        let body = serde_json::to_string(&Message::Commit(Box::new(commit))).unwrap();
        self.manager().message(&body).await.is_ok()
    }

    /// Prepares a stuck transfer, and an account that may get its money. Another command closes the
    /// first account after the debit and before the refusal of the credit.
    async fn prepare_stuck(&self) {
        Way::CannotGoBack.prepare(self).await;
        assert!(self.deliver_version(1).await);
        self.send::<Account>(&account(A), account::Command::Close, "close").await;
        assert!(self.deliver(&self.manager()).await);
        assert_eq!(self.status().await, Status::Stuck);
        self.open(C, "EUR", 1).await;
    }

    async fn balance(&self, id: &str) -> i64 {
        load::<Account>(&self.store(), &account(id), None, Consistency::Strong)
            .await
            .unwrap()
            .state
            .total_balance()
    }

    async fn status(&self) -> Status {
        Status::from_state(&self.transfer().await).unwrap()
    }

    async fn transfer(&self) -> transfer::State {
        load::<Transfer>(&self.store(), &the_transfer(), None, Consistency::Strong)
            .await
            .unwrap()
            .state
    }
}

const A: &str = "163082d2-b005-45d7-9eb6-aa1f83efd55d";
const B: &str = "5f0c1b1e-3d0a-4a55-8b4e-0a3f8c5f7d21";
const C: &str = "9b1deb4d-3b7d-4bad-9bdd-2b0d7b3dcb6d";

fn account(id: &str) -> StreamId {
    Account::stream(id).unwrap()
}

fn the_transfer() -> StreamId {
    Transfer::stream("t").unwrap()
}

fn request_command(from: &str, to: &str, amount: i64) -> transfer::Command {
    let (from, to, reference) = (valid(from), valid(to), Some(valid("rent")));
    transfer::Command::Request {
        from,
        to,
        amount: valid(amount),
        currency: valid("EUR"),
        reference,
    }
}

fn settle(to: &str) -> transfer::Command {
    transfer::Command::Settle { to: valid(to), reason: valid("agreed") }
}

/// Returns the status of the transfer and the code of its last refusal.
fn status_and_reason(state: &transfer::State) -> (Status, Option<&str>) {
    (Status::from_state(state).unwrap(), state.order().unwrap().reason.as_deref())
}

/// A course that a transfer can take.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Way {
    Arrives,
    NothingThere,
    NobodyTakesIt,
    CannotGoBack,
}

impl Way {
    const ALL: [Self; 4] =
        [Self::Arrives, Self::NothingThere, Self::NobodyTakesIt, Self::CannotGoBack];

    async fn prepare(self, bank: &Bank) {
        // A transfer that becomes stuck debits the whole balance, so that another command can close
        // the account meanwhile.
        bank.open(A, "EUR", if self == Self::NothingThere { 10 } else { 30 }).await;
        bank.open(
            B,
            if matches!(self, Self::NobodyTakesIt | Self::CannotGoBack) { "USD" } else { "EUR" },
            5,
        )
        .await;
        bank.request(A, B, 30).await;
    }

    /// Runs other commands while the transfer is interrupted.
    async fn meanwhile(self, bank: &Bank) {
        if self == Self::CannotGoBack {
            if bank.balance(A).await == 0 && bank.status().await != Status::Stuck {
                let id = uuid::Uuid::now_v7().to_string();
                let state = load::<Account>(&bank.store(), &account(A), None, Consistency::Strong)
                    .await
                    .unwrap();
                if matches!(state.state, account::State::Open(_)) {
                    bank.send::<Account>(&account(A), account::Command::Close, &id).await;
                }
            }
        } else {
            // Other commands append the next version of both accounts. Then only the idempotency
            // record proves that the account has executed the transfer's command.
            bank.credit(A, 1).await;
            bank.credit(B, 1).await;
        }
    }

    fn end(self) -> (Status, Option<&'static str>) {
        match self {
            Self::Arrives => (Status::Completed, None),
            Self::NothingThere => (Status::Refused, Some("insufficient-funds")),
            Self::NobodyTakesIt => (Status::Refunded, Some("other-currency")),
            Self::CannotGoBack => (Status::Stuck, Some("account-closed")),
        }
    }
}

#[tokio::test]
async fn money_arrives_in_a_counted_number_of_calls() {
    let bank = Bank::new().await;
    Way::Arrives.prepare(&bank).await;
    let manager = bank.manager();
    assert!(bank.deliver(&manager).await);
    assert_eq!((bank.balance(A).await, bank.balance(B).await), (0, 35));
    assert_eq!(bank.status().await, Status::Completed);
    // Each step reads the position and the transfer, sends a command to the account and one to the
    // transfer, and writes the position.
    let step = |account: &[&'static str], transfer: &[&'static str]| {
        [&["GetItem", "Query"], account, transfer, &["PutItem"]].concat()
    };
    let cold = ["Query", "ExecuteTransaction"];
    let expected = [
        step(&cold, &cold),
        step(&cold, &["ExecuteTransaction"]),
        // After the last event, nothing is due.
        vec!["GetItem", "PutItem"],
    ];
    assert_eq!(bank.wire.operations(), expected.concat());
    // A redelivery of all commits changes nothing, because the position is past them. For the two
    // versions below the position, the function checks that the log still has the commit at the
    // position. A restored log may lack that commit.
    assert!(bank.deliver(&manager).await);
    assert_eq!(bank.wire.operations(), ["GetItem"; 3 + 2]);
    let log = bank.store().get(&account(B), 3).await.unwrap().unwrap();
    assert_eq!(log.command, "transfer-t:2:credit");
    assert_eq!(log.meta.causation_id.as_deref(), Some("transfer-t:2"));
    assert_eq!(log.meta.actor.as_deref(), Some("ada"));
}

/// Each course of a transfer is interrupted after each call, while other commands change its
/// accounts. The money is always in exactly one place.
#[tokio::test]
async fn money_is_conserved_wherever_a_transfer_is_interrupted() {
    for way in Way::ALL {
        let (mut points, mut as_expected) = (0, 0);
        for calls in 0.. {
            let bank = Bank::new().await;
            way.prepare(&bank).await;
            let a = bank.balance(A).await;
            let b = bank.balance(B).await;
            bank.crash.after(calls);
            let finished = bank.deliver(&bank.manager()).await;
            bank.crash.recover();
            let mut given = 0;
            for _ in 0..4 {
                // The sum below takes the money under way from the transfer's state, which changes
                // only when the transfer records the step.
                way.meanwhile(&bank).await;
                given += i64::from(way != Way::CannotGoBack) * 2;
                // Another, cold instance gets all commits again.
                assert!(bank.deliver(&bank.manager()).await, "{way:?} after {calls} calls");
            }
            let state = bank.transfer().await;
            let sum = bank.balance(A).await + bank.balance(B).await + state.under_way();
            assert_eq!(sum, a + b + given, "{way:?} after {calls} calls");
            let ended = status_and_reason(&state);
            // An uninterrupted transfer refunds the money before another command can close the
            // account.
            if way == Way::CannotGoBack && ended.0 == Status::Refunded {
                assert_eq!(ended, (Status::Refunded, Some("other-currency")));
            } else {
                assert_eq!(ended, way.end(), "after {calls} calls");
                as_expected += 1;
            }
            points += 1;
            if finished {
                break;
            }
        }
        assert!(points > 10 && as_expected > 5, "{way:?}: {as_expected} of {points}");
    }
}

/// Deletes the idempotency records and the positions.
async fn forget_all_but_the_log(client: &Client) {
    for (table, keys) in
        [("RequestsTable", &["request"][..]), ("TransferPositionsTable", &["stream", "entry"])]
    {
        let items = client
            .scan()
            .table_name(ledgerline_testing::table(table))
            .send()
            .await
            .unwrap()
            .items
            .unwrap();
        assert!(!items.is_empty(), "{table}");
        for item in items {
            let key = keys.iter().map(|key| ((*key).to_owned(), item[*key].clone())).collect();
            client
                .delete_item()
                .table_name(ledgerline_testing::table(table))
                .set_key(Some(key))
                .send()
                .await
                .unwrap();
        }
    }
}

/// A redelivery of all commits of a transfer moves no money, even if the idempotency records and
/// the positions are lost.
#[tokio::test]
async fn a_redelivery_moves_no_money_even_if_only_the_log_is_left() {
    for way in Way::ALL {
        let bank = Bank::new().await;
        way.prepare(&bank).await;
        assert!(bank.deliver(&bank.manager()).await);
        bank.credit(A, 1_000).await;
        let before = (bank.balance(A).await, bank.balance(B).await, bank.transfer().await);
        let client = Client::new(&bank.dynamodb.sdk_config());
        forget_all_but_the_log(&client).await;
        assert!(bank.deliver(&bank.manager()).await);
        assert_eq!(
            (bank.balance(A).await, bank.balance(B).await, bank.transfer().await),
            before,
            "{way:?}"
        );
    }
}

/// The money of a stuck transfer reaches the account that an operator chose, once, even if the
/// process manager is interrupted after any call. If that account refuses, the transfer is stuck
/// again.
#[tokio::test]
async fn the_money_of_a_stuck_transfer_reaches_the_account_that_an_operator_chose() {
    let mut points = 0;
    for calls in 0.. {
        let bank = Bank::new().await;
        bank.prepare_stuck().await;
        bank.send::<Transfer>(&the_transfer(), settle(B), "to another currency").await;
        assert!(bank.deliver(&bank.manager()).await);
        assert_eq!(
            status_and_reason(&bank.transfer().await),
            (Status::Stuck, Some("other-currency"))
        );
        bank.send::<Transfer>(&the_transfer(), settle(C), "to c").await;
        bank.crash.after(calls);
        let finished = bank.deliver(&bank.manager()).await;
        bank.crash.recover();
        // Another command appends the next version of the account, and another instance gets all
        // commits again.
        bank.credit(C, 2).await;
        for _ in 0..2 {
            assert!(bank.deliver(&bank.manager()).await, "after {calls} calls");
        }
        assert_eq!(bank.status().await, Status::Settled, "after {calls} calls");
        assert_eq!(
            (bank.balance(A).await, bank.balance(B).await, bank.balance(C).await),
            (0, 5, 33)
        );
        points += 1;
        if finished {
            break;
        }
    }
    assert!(points > 10, "{points}");
}

/// After everything but the log is lost, the earlier of two decisions is redelivered. It moves no
/// money, although the later decision is under way.
#[tokio::test]
async fn an_older_decision_moves_no_money_of_a_later_one() {
    let bank = Bank::new().await;
    bank.prepare_stuck().await;
    bank.send::<Transfer>(&the_transfer(), settle(B), "to another currency").await;
    assert!(bank.deliver(&bank.manager()).await);
    bank.send::<Transfer>(&the_transfer(), settle(C), "to c").await;
    // The account appends the credit, and the function crashes before the transfer records it.
    let client = Client::new(&bank.dynamodb.sdk_config());
    let mut calls = 0;
    while bank.balance(C).await == 1 {
        calls += 1;
        bank.crash.after(calls);
        bank.deliver(&bank.manager()).await;
        bank.crash.recover();
    }
    assert_eq!(bank.status().await, Status::Settling);
    forget_all_but_the_log(&client).await;
    assert!(bank.deliver_version(5).await, "the first decision");
    assert_eq!((bank.balance(C).await, bank.status().await), (31, Status::Settling));
}
