//! Lists the transactions of every account, from the log.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    bank_functions::transactions_projector().await
}
