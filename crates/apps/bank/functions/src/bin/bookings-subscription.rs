//! Writes the ledger of all bookings, in the order of `$all`.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    ledgerline_lambda::subscription::run(bank::views::bookings::VIEW).await
}
