//! Passes every new commit on to views and process managers, and its events to the bus.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    ledgerline_tank::tank_fanout().await
}
