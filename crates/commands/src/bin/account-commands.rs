//! Opens, credits, debits and closes accounts.

use commands::account;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_kit::Error> {
    lambda_kit::commands::run(account::route).await
}
