//! Writes the view of levels from the states of tanks.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    ledgerline_tank::levels_projector().await
}
