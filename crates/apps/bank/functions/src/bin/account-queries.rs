//! Answers from the views of accounts: balances and transactions.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    ledgerline_lambda::queries::run(bank_functions::queries::account::routes()).await
}
