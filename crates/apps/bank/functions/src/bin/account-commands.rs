//! Handles the commands of accounts: opens, credits, debits and closes them.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    bank_functions::account_commands().await
}
