//! Answers from the read models of todos.

use todo_functions::queries::todo::TodoQueries;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    ledgerline_lambda::http::run(TodoQueries::from_env).await
}
