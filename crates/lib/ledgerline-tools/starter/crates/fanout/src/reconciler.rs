//! The reconciler: compares every subscriber with the streams that were written recently.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    fanout::reconciler().await
}
