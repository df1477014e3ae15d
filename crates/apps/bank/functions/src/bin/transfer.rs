//! Debits, credits and refunds accounts for transfers.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    bank_functions::transfer().await
}
