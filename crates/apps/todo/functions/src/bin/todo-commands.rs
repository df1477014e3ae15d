//! Handles the commands of todos: creates, updates and deletes them.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    todo_functions::todo_commands().await
}
