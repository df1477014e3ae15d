//! Lists the item history, from the log.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    shop_functions::item_history_projector().await
}
