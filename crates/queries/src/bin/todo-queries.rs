//! Answers from the read models of todos.

use queries::todo::TodoQueries;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_kit::Error> {
    lambda_kit::http::run(TodoQueries::from_env).await
}
