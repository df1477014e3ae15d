//! Adds ratings to the feeds of their authors' followers, from the log.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    links_functions::feeds_projector().await
}
