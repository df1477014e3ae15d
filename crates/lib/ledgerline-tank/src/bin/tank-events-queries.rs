//! Shows the commits of all streams, in the order of `$all`.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    ledgerline_tank::tank_events_queries().await
}
