//! Answers from the view of todos.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    ledgerline_lambda::queries::run(todo_functions::queries::todo::routes()).await
}
