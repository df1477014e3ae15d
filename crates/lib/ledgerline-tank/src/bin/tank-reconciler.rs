//! Compares every subscriber with the streams that were written lately.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    ledgerline_tank::tank_reconciler().await
}
