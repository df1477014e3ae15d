//! Writes the stock of all tanks, in the order of `$all`.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    ledgerline_lambda::subscription::run(ledgerline_tank::views::STOCK_VIEW).await
}
