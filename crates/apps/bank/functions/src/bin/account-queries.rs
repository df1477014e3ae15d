//! Answers from the views of accounts: balances and transactions.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    bank_functions::account_queries().await
}
