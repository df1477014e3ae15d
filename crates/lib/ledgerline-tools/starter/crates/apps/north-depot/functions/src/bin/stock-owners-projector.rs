//! Writes the row of stock owners from an event's state, unless the table has a newer one.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    north_depot_functions::stock_owners_projector().await
}
