//! Answers from the ledger of all bookings.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    ledgerline_lambda::queries::run(bank_functions::queries::bookings::routes()).await
}
