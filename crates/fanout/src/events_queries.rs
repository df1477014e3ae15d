//! Shows the commits of all streams, in one order.

use applications::All;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    ledgerline_lambda::events::run::<All>().await
}
