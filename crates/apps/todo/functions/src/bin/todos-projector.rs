//! Writes a todo from the state in an event, unless the row shows that version or a newer one.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    todo_functions::todos_projector().await
}
