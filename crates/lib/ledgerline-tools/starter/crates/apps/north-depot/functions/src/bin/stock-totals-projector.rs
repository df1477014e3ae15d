//! Counts events for the stock totals, from the log.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    north_depot_functions::stock_totals_projector().await
}
