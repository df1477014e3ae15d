//! Appends the commits of all streams to `$all`.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    ledgerline_tank::tank_sequencer().await
}
