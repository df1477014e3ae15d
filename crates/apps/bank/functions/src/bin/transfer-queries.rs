//! Answers from the view of transfers.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    bank_functions::transfer_queries().await
}
