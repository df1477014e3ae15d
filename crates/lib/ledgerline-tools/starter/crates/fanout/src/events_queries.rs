//! Lists the commits of all streams, in the order of `$all`.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    fanout::events_queries().await
}
