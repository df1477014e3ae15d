//! The fanout: passes every commit to views and process managers, and its events to the bus.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    fanout::fanout().await
}
