//! Shows the commits of all streams, in one order.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    fanout::events_queries().await
}
