//! Creates and renames todos.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    ledgerline_lambda::commands::run(todo_functions::commands::todo::route).await
}
