//! Lists the ratings of every user, from the log.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    ledgerline_lambda::log_projector::run(links::views::user_ratings::VIEW).await
}
