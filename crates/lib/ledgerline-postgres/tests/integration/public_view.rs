//! The view that shows the active generation to people.

use futures::future::join_all;
use ledgerline::{
    Causes, Changes, StreamId,
    contract::log_row_store::TABLE,
    view_store::{CommitChanges, LogRowStore, RowStore, ViewError},
};
use ledgerline_postgres::{Database, PostgresLogRows};
use ledgerline_testing::has_postgres;
use tokio_postgres::{Client, NoTls};

use super::{database_name, server};

const SCRIPT: &str = "CREATE OR REPLACE VIEW public.\"fills\" AS SELECT \
    sort AS \"entry\", (row ->> 'count')::bigint AS \"count\" \
    FROM {generation}.\"fills\" WHERE row IS NOT NULL;";
const NEWER_SCRIPT: &str = "CREATE OR REPLACE VIEW public.\"fills\" AS SELECT \
    (row ->> 'count')::bigint AS \"litres\" FROM {generation}.\"fills\";";

/// A function's instance: its own connection.
fn open(name: &str, script: &'static str) -> PostgresLogRows {
    let database = Database::new(&server().url(name), Some(server().authority())).unwrap();
    PostgresLogRows::new(database, TABLE, script)
}

async fn connect(name: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(&server().url(name), NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

async fn deliver(rows: &PostgresLogRows, count: i64) {
    let mut changes = Changes::new(TABLE);
    changes.add("1", "sum", "count", count);
    let stream = StreamId::new("tank", "1").unwrap();
    let commit = CommitChanges { stream: &stream, version: 1, changes };
    rows.deliver_all(vec![commit]).await.unwrap();
}

#[tokio::test]
async fn people_see_the_active_generation_with_typed_columns() {
    if !has_postgres() {
        return;
    }
    let name = database_name().await;
    let people = connect(&name).await;
    let read = async |sql: &str| people.query_one(sql, &[]).await.unwrap().get::<_, i64>(0);
    // Given two generations, when many instances start at once,
    let rows = open(&name, SCRIPT);
    deliver(&rows, 5).await;
    deliver(&rows.at_generation(1), 7).await;
    let instances: Vec<_> = (0..8).map(|_| open(&name, SCRIPT)).collect();
    for result in join_all(instances.iter().map(RowStore::publish)).await {
        result.unwrap();
    }
    // then people see the active one.
    assert_eq!(read("SELECT count FROM fills WHERE entry = 'sum'").await, 5);
    people
        .batch_execute("CREATE VIEW report AS SELECT sum(count)::bigint FROM fills")
        .await
        .unwrap();
    // After a switch, people and their own SQL views read the next generation.
    instances[0].at_generation(1).publish().await.unwrap();
    assert_eq!(read("SELECT * FROM report").await, 7);
    // The earlier generation can be deleted.
    rows.delete_generation().await.unwrap();
    assert_eq!(read("SELECT count FROM fills").await, 7);

    // A changed definition applies from the next generation on.
    let newer = open(&name, NEWER_SCRIPT);
    newer.at_generation(1).publish().await.unwrap();
    assert_eq!(read("SELECT count FROM fills").await, 7);
    deliver(&newer.at_generation(2), 9).await;
    // A report on a dropped column blocks the new definition. The error names the report.
    let error = newer.at_generation(2).publish().await.unwrap_err();
    let error = Causes(&error).to_string();
    assert!(error.contains("view report depends on view fills"), "{error}");
    people.batch_execute("DROP VIEW report").await.unwrap();
    open(&name, NEWER_SCRIPT).at_generation(2).publish().await.unwrap();
    assert_eq!(read("SELECT litres FROM fills").await, 9);
    // A reader with an open transaction delays an attempt for half a second.
    people.batch_execute("BEGIN; SELECT * FROM fills").await.unwrap();
    let error = open(&name, NEWER_SCRIPT).at_generation(1).publish().await.unwrap_err();
    assert!(matches!(error, ViewError::Throttled(_)), "{error}");
    people.batch_execute("COMMIT").await.unwrap();
}

#[tokio::test]
async fn publishing_never_replaces_a_table_or_a_view_of_the_same_name() {
    if !has_postgres() {
        return;
    }
    let name = database_name().await;
    let people = connect(&name).await;
    people.batch_execute("CREATE TABLE public.fills (litres bigint)").await.unwrap();
    let rows = open(&name, SCRIPT);
    deliver(&rows, 5).await;
    for theirs in ["TABLE", "VIEW"] {
        let error = rows.publish().await.unwrap_err().to_string();
        assert!(error.contains("no function has made it"), "{error}");
        // The next attempt of this process waits.
        assert!(!rows.is_publish_due());
        let drop = format!("DROP {theirs} public.fills; CREATE VIEW public.fills AS SELECT 1 AS a");
        people.batch_execute(&drop).await.unwrap();
    }
    assert_eq!(rows.positions(&[StreamId::new("tank", "1").unwrap()]).await.unwrap(), [1]);
}
