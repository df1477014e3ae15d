//! Handles the commands of tanks.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    ledgerline_tank::tank_commands().await
}
