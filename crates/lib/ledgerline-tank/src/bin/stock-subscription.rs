//! Writes the stock of all tanks, in the order of `$all`.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    ledgerline_tank::stock_subscription().await
}
