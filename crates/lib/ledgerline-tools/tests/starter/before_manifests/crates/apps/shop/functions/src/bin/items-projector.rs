//! Writes the row of items that an event's state makes, unless the table has a newer one.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    shop_functions::items_projector().await
}
