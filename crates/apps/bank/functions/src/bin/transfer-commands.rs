//! Handles the commands of transfers: requests them, and settles stuck ones.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    bank_functions::transfer_commands().await
}
