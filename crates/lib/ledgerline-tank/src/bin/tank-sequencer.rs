//! Gives the commits of all streams one order.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    ledgerline_lambda::sequencer::run().await
}
