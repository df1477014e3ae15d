//! Answers from the read models of transfers.

use bank_functions::queries::transfer::TransferQueries;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    ledgerline_lambda::http::run(TransferQueries::from_env).await
}
