//! Answers from the read models of ratings.

use links_functions::queries::rating::RatingQueries;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    ledgerline_lambda::http::run(RatingQueries::from_env).await
}
