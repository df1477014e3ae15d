//! Lists the transactions of every account, from the log.

use bank::views::transactions;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    ledgerline_lambda::fifo::project("TRANSACTIONS_TABLE", transactions::TABLE, transactions::changes).await
}
