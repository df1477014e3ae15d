//! Writes the stock journal, from the log.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    north_depot_functions::stock_journal_projector().await
}
