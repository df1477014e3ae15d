//! Answers from the view of stock owners.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    north_depot_functions::stock_owners_queries().await
}
