//! Lists the user ratings, from the log.

use links::views::user_ratings;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    ledgerline_lambda::fifo::project("USER_RATINGS_TABLE", user_ratings::TABLE, user_ratings::changes).await
}
