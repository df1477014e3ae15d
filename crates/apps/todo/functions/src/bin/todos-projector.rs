//! Writes a todo from the state that an event carries, unless the row shows that version or a newer one.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    ledgerline_lambda::state_projector::run(todo::views::todos::VIEW).await
}
