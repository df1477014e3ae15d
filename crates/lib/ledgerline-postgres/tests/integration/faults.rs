//! Faults of a server, a network and a neighbour: nothing is lost, nothing is doubled, and each
//! error names its cause.

use std::{sync::Arc, time::Duration};

use ledgerline::{
    Causes, Changes, StreamId,
    contract::log_row_store::TABLE,
    position::Delivery::{self, Duplicate, Next},
    view_store::{CommitChanges, LogRowStore, RowStore, ViewError},
};
use ledgerline_local::postgres::PostgresServer;
use ledgerline_postgres::{Database, PostgresLogRows};
use ledgerline_testing::has_postgres;
use tokio::{
    io::{copy, copy_bidirectional},
    net::{TcpListener, TcpStream},
    sync::{Notify, watch},
    task::JoinHandle,
};
use tokio_postgres::{Client, NoTls};

/// A server, and a view in it.
struct World {
    server: PostgresServer,
    rows: PostgresLogRows,
    stream: StreamId,
    _folder: tempfile::TempDir,
}

impl World {
    /// Returns `None` on a machine without a server.
    fn new(settings: &[&str]) -> Option<Self> {
        if !has_postgres() {
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let settings = [&["fsync=off"], settings].concat();
        let server = PostgresServer::start(folder.path(), None, &settings).unwrap();
        let rows = rows(&server, server.port());
        let stream = StreamId::new("tank", "1").unwrap();
        Some(Self { server, rows, stream, _folder: folder })
    }

    /// Returns a world in which the view has version 1.
    async fn with_one_commit(settings: &[&str]) -> Option<Self> {
        let world = Self::new(settings)?;
        assert_eq!(world.deliver(1).await.unwrap().unwrap(), (Next, 1));
        Some(world)
    }

    /// Delivers a commit that adds 1 to a sum.
    fn deliver(&self, version: u64) -> JoinHandle<Result<(Delivery, u64), ViewError>> {
        deliver_to(self.rows.clone(), &self.stream, version)
    }

    /// Connects as an administrator.
    async fn connect(&self) -> Client {
        let url = self.server.url("postgres");
        let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }

    async fn sum(&self) -> i64 {
        let sum = "SELECT (row -> 'count')::bigint FROM g0.fills WHERE sort = 'sum'";
        self.connect().await.query_one(sum, &[]).await.unwrap().get(0)
    }

    /// Waits until a delivery waits for a lock.
    async fn until_blocked(&self) {
        let client = self.connect().await;
        let blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        while client.query_one(blocked, &[]).await.unwrap().get::<_, i64>(0) == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Returns the view in a server that is reached by this port.
fn rows(server: &PostgresServer, port: u16) -> PostgresLogRows {
    let url = server.url("postgres").replace(&server.port().to_string(), &port.to_string());
    PostgresLogRows::new(Database::new(&url, Some(server.authority())).unwrap(), TABLE, "")
}

fn deliver_to(
    rows: PostgresLogRows,
    stream: &StreamId,
    version: u64,
) -> JoinHandle<Result<(Delivery, u64), ViewError>> {
    let stream = stream.clone();
    tokio::spawn(async move {
        let mut changes = Changes::new(TABLE);
        changes.add("1", "sum", "count", 1);
        let commit = CommitChanges { stream: &stream, version, changes };
        rows.deliver_all(vec![commit]).await.map(|deliveries| deliveries[0])
    })
}

/// A lock on all rows: a delivery has begun its transaction, and waits.
const LOCK_ROWS: &str = "BEGIN; LOCK TABLE g0.fills IN ACCESS EXCLUSIVE MODE";

#[tokio::test]
async fn a_server_that_stops_and_starts_costs_no_delivery() {
    let Some(world) = World::with_one_commit(&[]).await else { return };
    let World { server, rows, stream, _folder: folder } = world;
    let port = server.port();
    drop(server);
    // While the server is down, the error is an outage.
    let error = deliver_to(rows.clone(), &stream, 2).await.unwrap().unwrap_err();
    assert!(error.is_outage() && Causes(&error).to_string().contains("refused"), "{error:?}");
    let server = PostgresServer::start(folder.path(), Some(port), &["fsync=off"]).unwrap();
    assert_eq!(deliver_to(rows.clone(), &stream, 2).await.unwrap().unwrap(), (Next, 2));
    // The connection is as after a freeze: the server has closed it, and this program does not
    // know.
    drop(server);
    let _server = PostgresServer::start(folder.path(), Some(port), &["fsync=off"]).unwrap();
    assert_eq!(deliver_to(rows, &stream, 3).await.unwrap().unwrap(), (Next, 3));
}

#[tokio::test]
async fn a_server_that_is_killed_in_a_transaction_stores_nothing_of_it() {
    let Some(world) = World::with_one_commit(&[]).await else { return };
    // Given a delivery that waits in the middle of its transaction,
    let client = world.connect().await;
    client.batch_execute(LOCK_ROWS).await.unwrap();
    let waiting = world.deliver(2);
    world.until_blocked().await;
    // when the server is killed,
    let port = world.server.port();
    let World { server, rows, stream, _folder: folder } = world;
    let pid = std::fs::read_to_string(folder.path().join("data/postmaster.pid")).unwrap();
    let kill = ["-QUIT", pid.lines().next().unwrap()];
    assert!(std::process::Command::new("kill").args(kill).status().unwrap().success());
    let error = waiting.await.unwrap().unwrap_err();
    assert!(error.is_outage(), "{error:?}");
    drop(server);
    // then the commit is the next one still.
    let server = PostgresServer::start(folder.path(), Some(port), &["fsync=off"]).unwrap();
    let world = World { server, rows, stream, _folder: folder };
    assert_eq!(world.deliver(2).await.unwrap().unwrap(), (Next, 2));
    assert_eq!(world.sum().await, 2);
}

/// What a proxy is told to do.
#[derive(Default)]
struct Orders {
    swallow: Notify,
    close: Notify,
}

/// A proxy that swallows the answers of the server when it is told to, and later closes. A
/// connection that closes with the first answer would end the server's transaction at the next.
async fn start_proxy(port: u16, orders: Arc<Orders>) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let orders = Arc::clone(&orders);
            tokio::spawn(async move {
                let server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                let (mut requests, mut answers_to) = client.into_split();
                let (mut answers, mut requests_to) = server.into_split();
                let forward =
                    tokio::spawn(async move { copy(&mut requests, &mut requests_to).await });
                tokio::select! {
                    _ = copy(&mut answers, &mut answers_to) => {}
                    () = orders.swallow.notified() => {
                        let mut nowhere = tokio::io::sink();
                        tokio::select! {
                            _ = copy(&mut answers, &mut nowhere) => {}
                            () = orders.close.notified() => {}
                        }
                    }
                }
                forward.abort();
            });
        }
    });
    address.port()
}

#[tokio::test]
async fn a_commit_whose_answer_is_lost_is_a_duplicate_when_redelivered() {
    let Some(world) = World::new(&[]) else { return };
    let orders = Arc::new(Orders::default());
    let port = start_proxy(world.server.port(), Arc::clone(&orders)).await;
    let rows = rows(&world.server, port);
    assert_eq!(deliver_to(rows.clone(), &world.stream, 1).await.unwrap().unwrap(), (Next, 1));
    // Given a delivery whose statements, with COMMIT, are at the server,
    let client = world.connect().await;
    client.batch_execute(LOCK_ROWS).await.unwrap();
    let waiting = deliver_to(rows.clone(), &world.stream, 2);
    world.until_blocked().await;
    // when the server commits, and its answer is lost,
    orders.swallow.notify_waiters();
    client.batch_execute("COMMIT").await.unwrap();
    while world.sum().await < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    orders.close.notify_waiters();
    let error = waiting.await.unwrap().unwrap_err();
    assert!(error.is_outage(), "{error:?}");
    // then the commit is found as a duplicate.
    assert_eq!(deliver_to(rows, &world.stream, 2).await.unwrap().unwrap(), (Duplicate, 2));
    assert_eq!(world.sum().await, 2);
}

/// A batch has a time limit. When it is over, the transaction is dropped in the middle.
#[tokio::test]
async fn a_delivery_that_is_dropped_in_a_transaction_leaves_a_connection_that_works() {
    let Some(world) = World::with_one_commit(&[]).await else { return };
    let client = world.connect().await;
    // The lock keeps the first statements of the transaction waiting.
    client.batch_execute("BEGIN; LOCK TABLE g0.fills_positions").await.unwrap();
    let waiting = world.deliver(2);
    world.until_blocked().await;
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    client.batch_execute("COMMIT").await.unwrap();
    assert_eq!(world.deliver(2).await.unwrap().unwrap(), (Next, 2));
    assert_eq!(world.sum().await, 2);
}

#[tokio::test]
async fn after_a_failover_the_connection_to_a_read_only_server_is_closed() {
    let Some(world) = World::with_one_commit(&[]).await else { return };
    let client = world.connect().await;
    let read_only = async |value: &str| {
        let setting =
            format!("ALTER DATABASE postgres SET default_transaction_read_only = {value}");
        client
            .batch_execute(&format!("SET default_transaction_read_only = off; {setting}"))
            .await
            .unwrap();
    };
    read_only("on").await;
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
               WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
    client.batch_execute(end).await.unwrap();
    let error = world.deliver(2).await.unwrap().unwrap_err();
    let text = Causes(&error).to_string();
    assert!(error.is_outage() && text.contains("read-only transaction"), "{text}");
    // The connection is closed, so the next delivery finds the server that writes.
    read_only("off").await;
    assert_eq!(world.deliver(2).await.unwrap().unwrap(), (Next, 2));
    assert_eq!(world.sum().await, 2);
}

#[tokio::test]
async fn a_deadlock_and_a_lack_of_connections_are_throttling() {
    let settings = ["max_connections=4", "superuser_reserved_connections=0", "max_wal_senders=0"];
    let Some(world) = World::with_one_commit(&settings).await else { return };
    // Given a position at which the server finds a deadlock,
    let neighbour = world.connect().await;
    let deadlock = "CREATE FUNCTION deadlock() RETURNS trigger LANGUAGE plpgsql AS \
                    $$ BEGIN RAISE SQLSTATE '40P01' USING MESSAGE = 'deadlock detected'; END $$; \
                    CREATE TRIGGER deadlock BEFORE UPDATE ON g0.fills_positions \
                    FOR EACH ROW EXECUTE FUNCTION deadlock()";
    neighbour.batch_execute(deadlock).await.unwrap();
    let error = world.deliver(2).await.unwrap().unwrap_err();
    assert!(matches!(&error, ViewError::Throttled(cause) if cause.contains("deadlock")), "{error}");
    // the connection works on, without the changes of the transaction.
    neighbour.batch_execute("DROP TRIGGER deadlock ON g0.fills_positions").await.unwrap();
    assert_eq!(world.deliver(2).await.unwrap().unwrap(), (Next, 2));
    assert_eq!(world.sum().await, 2);

    // Given neighbours with all connections but those of this test,
    let other = rows(&world.server, world.server.port());
    let _neighbours = [world.connect().await, world.connect().await];
    let error = deliver_to(other.clone(), &world.stream, 3).await.unwrap().unwrap_err();
    assert!(matches!(&error, ViewError::Throttled(cause) if cause.contains("53300")), "{error}");
    drop(neighbour);
    let mut delivered = deliver_to(other.clone(), &world.stream, 3).await.unwrap();
    // The server needs some time to end a connection.
    while matches!(delivered, Err(ViewError::Throttled(_))) {
        delivered = deliver_to(other.clone(), &world.stream, 3).await.unwrap();
    }
    assert_eq!(delivered.unwrap(), (Next, 3));
}

#[tokio::test]
async fn a_certificate_of_another_authority_is_refused() {
    let Some(world) = World::new(&[]) else { return };
    let Some(other) = World::new(&[]) else { return };
    let database =
        Database::new(&world.server.url("postgres"), Some(other.server.authority())).unwrap();
    let rows = PostgresLogRows::new(database, TABLE, "");
    let error = deliver_to(rows, &world.stream, 1).await.unwrap().unwrap_err();
    let text = Causes(&error).to_string();
    assert!(error.is_outage() && text.contains("invalid peer certificate"), "{text}");
    // The server's certificate is for `localhost` alone.
    let url = world.server.url("postgres").replace("localhost", "127.0.0.1");
    let database = Database::new(&url, Some(world.server.authority())).unwrap();
    let rows = PostgresLogRows::new(database, TABLE, "");
    let error = deliver_to(rows, &world.stream, 1).await.unwrap().unwrap_err();
    assert!(Causes(&error).to_string().contains("not valid for name"), "{}", Causes(&error));
}

#[tokio::test]
async fn a_wrong_setting_is_named_without_the_password() {
    for (url, authorities, expected) in [
        ("postgres//ada:secret@x/y", None, "is no address of PostgreSQL"),
        ("postgresql://ada:secret@x", None, "names no database"),
        ("postgresql://ada:secret@x/y", Some("/none.pem"), "`/none.pem` cannot be read"),
        ("postgresql://ada:secret@x/y", Some("/dev/null"), "`/dev/null` has no certificate"),
    ] {
        let error = Database::new(url, authorities.map(Into::into)).unwrap_err().to_string();
        assert!(error.contains(expected) && !error.contains("secret"), "{error}");
    }
}

#[tokio::test]
async fn a_table_that_differs_is_refused_by_name_and_missing_tables_are_created() {
    let Some(world) = World::new(&[]) else { return };
    let client = world.connect().await;
    let other = "CREATE SCHEMA g1; CREATE TABLE g1.fills (partition text PRIMARY KEY, row json)";
    client.batch_execute(other).await.unwrap();
    let error = world.rows.at_generation(1).prepare().await.unwrap_err().to_string();
    let expected = "the table `g1.\"fills\"` has the columns partition text (key), row json, and the \
                    view needs partition text (key), sort text (key), row jsonb";
    assert!(error.contains(expected), "{error}");
    // A new script is for the next generation. The rows of this one are written as they were.
    let index = "CREATE INDEX fills_counts ON {generation}.fills ((row -> 'count'));";
    let database = Database::new(&world.server.url("postgres"), Some(world.server.authority()));
    let newer = PostgresLogRows::new(database.unwrap(), TABLE, index);
    world.rows.prepare().await.unwrap();
    for generation in [0, 2] {
        newer.at_generation(generation).prepare().await.unwrap();
    }
    let indexes = "SELECT schemaname::text FROM pg_indexes WHERE indexname = 'fills_counts'";
    let found = client.query(indexes, &[]).await.unwrap();
    assert_eq!(found.iter().map(|row| row.get::<_, String>(0)).collect::<Vec<_>>(), ["g2"]);
    assert_eq!(world.deliver(1).await.unwrap().unwrap(), (Next, 1));
    assert_eq!(deliver_to(newer.clone(), &world.stream, 2).await.unwrap().unwrap(), (Next, 2));
    newer.at_generation(2).delete_generation().await.unwrap();
    assert_eq!(client.query(indexes, &[]).await.unwrap().len(), 0);
    // Tables that someone has dropped are created again.
    client.batch_execute("DROP SCHEMA g0 CASCADE").await.unwrap();
    assert_eq!(world.rows.positions(std::slice::from_ref(&world.stream)).await.unwrap(), [0]);
    assert_eq!(world.deliver(1).await.unwrap().unwrap(), (Next, 1));
    client.batch_execute("DROP TABLE g0.fills").await.unwrap();
    assert!(world.deliver(2).await.unwrap().unwrap_err().is_outage());
    assert_eq!(world.deliver(2).await.unwrap().unwrap(), (Next, 2));
}

/// A row that the database can never store does not look like an outage, which would hold up the
/// rows of all streams. A lost right holds them up.
#[tokio::test]
async fn a_row_that_is_too_large_for_an_index_is_at_fault_and_a_lost_right_is_an_outage() {
    let Some(world) = World::new(&[]) else { return };
    let index = "CREATE INDEX fills_texts ON {generation}.fills ((row ->> 'text'));";
    let database = |url: &str| Database::new(url, Some(world.server.authority())).unwrap();
    let rows = PostgresLogRows::new(database(&world.server.url("postgres")), TABLE, index);
    let mut rng = fastrand::Rng::with_seed(1);
    let text: String = std::iter::repeat_with(|| rng.alphanumeric()).take(20_000).collect();
    let mut changes = Changes::new(TABLE);
    changes.set("1", "a", "text", text.clone());
    let commit = CommitChanges { stream: &world.stream, version: 1, changes };
    let error = rows.deliver_all(vec![commit]).await.unwrap_err();
    assert!(matches!(&error, ViewError::Row(_)), "{error:?}");
    assert!(!format!("{error:?}").contains(&text[..8]), "{error:?}");

    let role = "CREATE ROLE reader LOGIN PASSWORD 'reader'; GRANT USAGE ON SCHEMA g0 TO reader";
    world.connect().await.batch_execute(role).await.unwrap();
    let url = world.server.url("postgres").replace("ledgerline:local", "reader:reader");
    let reader = PostgresLogRows::new(database(&url), TABLE, "");
    let error = deliver_to(reader, &world.stream, 1).await.unwrap().unwrap_err();
    let text = Causes(&error).to_string();
    assert!(error.is_outage() && text.contains("permission denied for table"), "{text}");
}

/// A network may drop a connection in silence while a function is frozen.
#[tokio::test]
async fn a_server_that_never_answers_is_an_outage_after_five_seconds() {
    let Some(world) = World::with_one_commit(&[]).await else { return };
    let client = world.connect().await;
    client.batch_execute("BEGIN; LOCK TABLE g0.fills_positions").await.unwrap();
    let error = world.deliver(2).await.unwrap().unwrap_err();
    assert!(
        error.is_outage() && Causes(&error).to_string().contains("did not answer"),
        "{error:?}"
    );
    client.batch_execute("COMMIT").await.unwrap();
    assert_eq!(world.deliver(2).await.unwrap().unwrap(), (Next, 2));
}

/// Starts a proxy. After the order, each open connection closes at its next request, and the proxy
/// accepts new connections but never answers.
async fn start_closing_proxy(port: u16, order: watch::Receiver<bool>) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut silent = Vec::new();
        while let Ok((mut client, _)) = listener.accept().await {
            if *order.borrow() {
                silent.push(client);
                continue;
            }
            let mut order = order.clone();
            tokio::spawn(async move {
                let mut server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                tokio::select! {
                    biased;
                    _ = order.wait_for(|is_given| *is_given) => {}
                    _ = copy_bidirectional(&mut client, &mut server) => {}
                }
                client.readable().await.unwrap();
            });
        }
    });
    address.port()
}

/// A server that is overloaded, or a proxy in front of it, may accept a connection and then be
/// silent.
#[tokio::test]
async fn a_second_connection_that_is_never_answered_is_an_outage_after_five_seconds() {
    let Some(world) = World::new(&[]) else { return };
    let (close, order) = watch::channel(false);
    let port = start_closing_proxy(world.server.port(), order).await;
    let rows = rows(&world.server, port);
    assert_eq!(deliver_to(rows.clone(), &world.stream, 1).await.unwrap().unwrap(), (Next, 1));
    close.send(true).unwrap();
    let error = deliver_to(rows, &world.stream, 2).await.unwrap().unwrap_err();
    let text = Causes(&error).to_string();
    assert!(error.is_outage() && text.contains("did not answer"), "{text}");
    assert_eq!(world.sum().await, 1);
}
