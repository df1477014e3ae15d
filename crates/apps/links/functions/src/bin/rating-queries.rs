//! Answers from the views of ratings: of a link, of a user, and the feed of a user.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    links_functions::rating_queries().await
}
