//! Writes the stock diary, in the order of `$all`.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    north_depot_functions::stock_diary_subscription().await
}
