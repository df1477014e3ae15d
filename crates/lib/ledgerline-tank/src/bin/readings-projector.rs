//! Writes the readings of every tank.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    ledgerline_lambda::log_projector::run(ledgerline_tank::views::READINGS_VIEW).await
}
