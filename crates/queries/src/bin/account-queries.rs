//! Answers from the read models of accounts.

use queries::account::AccountQueries;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_kit::Error> {
    lambda_kit::http::run(AccountQueries::from_env).await
}
