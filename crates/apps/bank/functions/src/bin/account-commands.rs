//! Opens, credits, debits and closes accounts.

use bank_functions::commands::account;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    ledgerline_lambda::commands::run(account::route).await
}
