//! Lists the transactions of every account, from the log.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    ledgerline_lambda::log_projector::run(bank::views::transactions::VIEW).await
}
