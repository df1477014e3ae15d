//! Lists the link ratings, from the log.

use links::views::link_ratings;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    ledgerline_lambda::fifo::project("LINK_RATINGS_TABLE", link_ratings::TABLE, link_ratings::changes).await
}
