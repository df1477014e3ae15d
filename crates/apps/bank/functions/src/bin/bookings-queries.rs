//! Answers from the ledger of all bookings.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    bank_functions::bookings_queries().await
}
