//! Answers from the views of ratings: of a link, of a user, and the feed of a user.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    ledgerline_lambda::queries::run(links_functions::queries::rating::routes()).await
}
