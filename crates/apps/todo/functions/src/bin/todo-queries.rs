//! Answers from the view of todos.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    todo_functions::todo_queries().await
}
