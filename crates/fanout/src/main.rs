//! Puts every new commit on the bus and on the queues of the log projectors.

use applications::All;
use ledgerline_lambda::fanout::Fanout;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    ledgerline_lambda::stream::run(Fanout::from_env::<All>).await
}
