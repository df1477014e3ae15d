//! Puts every new commit on the bus and on the queues of the log projectors.

use fanout::Fanout;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_kit::Error> {
    lambda_kit::stream::run(Fanout::from_env).await
}
