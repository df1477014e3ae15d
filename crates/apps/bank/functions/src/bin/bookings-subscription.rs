//! Writes the ledger of all bookings, in the order of `$all`.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    bank_functions::bookings_subscription().await
}
