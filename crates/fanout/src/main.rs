//! Puts every new commit on the bus and on the queues of the log projectors.

use applications::All;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    ledgerline_lambda::fanout::run::<All>().await
}
