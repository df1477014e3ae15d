//! Brings ratings into the feeds of those who follow their authors, from the log.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    links_functions::feeds_projector().await
}
