//! Handles requests to haul litres from one tank to another.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    ledgerline_tank::haul_commands().await
}
