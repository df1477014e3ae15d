//! Answers searches in the transactions of an account, from PostgreSQL.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    bank_functions::transactions_search_queries().await
}
