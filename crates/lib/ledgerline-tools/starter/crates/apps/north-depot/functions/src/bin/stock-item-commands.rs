//! Handles the commands of stock items: creates and renames stock items.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    north_depot_functions::stock_item_commands().await
}
