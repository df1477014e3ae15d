//! Lists the ratings of every user, from the log.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    links_functions::user_ratings_projector().await
}
