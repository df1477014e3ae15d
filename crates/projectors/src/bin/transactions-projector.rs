//! Lists the transactions of every account, from the log.

use read_models::transactions;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_kit::Error> {
    lambda_kit::fifo::project("TRANSACTIONS_TABLE", transactions::TABLE, transactions::changes).await
}
