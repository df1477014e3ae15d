//! Takes the commands of items: creates and renames them.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    shop_functions::item_commands().await
}
