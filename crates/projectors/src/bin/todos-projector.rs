//! Writes the todos that an event carries, if it is newer than the row.

use domain::todo::Todo;
use read_models::todos;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_kit::Error> {
    lambda_kit::bus::run::<Todo, _>("TODOS_TABLE", todos::TABLE, todos::row).await
}
