//! The stores of views against a real server.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "in a test a panic is the report")]

mod faults;
mod public_view;
mod schedules;
mod stores;

use std::sync::{
    OnceLock,
    atomic::{AtomicU32, Ordering},
};

use ledgerline_local::postgres::PostgresServer;
use ledgerline_postgres::Database;

/// The server that the tests share. It ends with this process.
static SERVER: OnceLock<PostgresServer> = OnceLock::new();

/// Returns the shared server.
fn server() -> &'static PostgresServer {
    SERVER.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap().keep();
        PostgresServer::start(&folder, None, &["fsync=off", "deadlock_timeout=10ms"]).unwrap()
    })
}

/// Returns an empty database of the shared server.
async fn database() -> Database {
    let server = server();
    Database::new(&server.url(&database_name().await), Some(server.authority())).unwrap()
}

/// Creates an empty database in the shared server, and returns its name.
async fn database_name() -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let server = server();
    let name = format!("test{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    execute(server, &format!("CREATE DATABASE {name}")).await;
    name
}

/// Runs a statement as an administrator would.
async fn execute(server: &PostgresServer, sql: &str) {
    Database::new(&server.url("postgres"), Some(server.authority()))
        .unwrap()
        .execute(sql)
        .await
        .unwrap();
}
