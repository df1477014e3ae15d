//! Answers from the read models of ratings.

use queries::rating::RatingQueries;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_kit::Error> {
    lambda_kit::http::run(RatingQueries::from_env).await
}
