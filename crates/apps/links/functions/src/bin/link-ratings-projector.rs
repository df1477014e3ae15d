//! Lists the ratings of every link, and counts and sums them, from the log.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    links_functions::link_ratings_projector().await
}
