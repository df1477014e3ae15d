//! The reconciler: compares everything that follows the log with the streams that were written
//! lately.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    fanout::reconciler().await
}
