//! Lists the link ratings, from the log.

use read_models::link_ratings;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_kit::Error> {
    lambda_kit::fifo::project("LINK_RATINGS_TABLE", link_ratings::TABLE, link_ratings::changes).await
}
