//! Handles requests to haul litres from one tank to another.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    ledgerline_lambda::commands::run(ledgerline_tank::commands::hauls()).await
}
