//! Writes the row of stock cards that an event's state makes, unless the table has a newer one.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    north_depot_functions::stock_cards_projector().await
}
