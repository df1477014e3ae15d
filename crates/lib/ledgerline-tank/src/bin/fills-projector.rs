//! Writes the amounts of every tank, and the sum of those that came in.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    ledgerline_tank::fills_projector().await
}
