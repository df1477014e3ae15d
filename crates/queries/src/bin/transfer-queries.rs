//! Answers from the read models of transfers.

use queries::transfer::TransferQueries;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_kit::Error> {
    lambda_kit::http::run(TransferQueries::from_env).await
}
