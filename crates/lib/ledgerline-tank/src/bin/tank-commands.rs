//! Handles the commands of tanks.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    ledgerline_lambda::commands::run(ledgerline_tank::commands::tanks()).await
}
