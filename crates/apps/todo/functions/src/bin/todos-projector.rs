//! Writes the todos that an event carries, if it is newer than the row.

use todo::{todo::Todo, views::todos};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    ledgerline_lambda::bus::run::<Todo, _>("TODOS_TABLE", todos::TABLE, todos::row).await
}
