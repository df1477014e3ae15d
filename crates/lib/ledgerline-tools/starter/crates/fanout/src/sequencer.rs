//! The sequencer: gives the commits of all streams one order, in `$all`.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    fanout::sequencer().await
}
