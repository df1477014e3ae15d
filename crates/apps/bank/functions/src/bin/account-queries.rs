//! Answers from the read models of accounts.

use bank_functions::queries::account::AccountQueries;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    ledgerline_lambda::http::run(AccountQueries::from_env).await
}
