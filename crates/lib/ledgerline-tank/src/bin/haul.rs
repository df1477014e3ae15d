//! Sends the commands that hauls make due.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    ledgerline_tank::haul().await
}
