//! Writes the transactions of every account into PostgreSQL, from the log, for searches.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    bank_functions::transactions_search_projector().await
}
