//! Answers from the view of items.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    shop_functions::items_queries().await
}
