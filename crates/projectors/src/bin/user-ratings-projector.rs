//! Lists the user ratings, from the log.

use read_models::user_ratings;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_kit::Error> {
    lambda_kit::fifo::project("USER_RATINGS_TABLE", user_ratings::TABLE, user_ratings::changes).await
}
