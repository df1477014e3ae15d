//! Writes the transfers that an event carries, if it is newer than the row.

use bank::{transfer::Transfer, views::transfers};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    ledgerline_lambda::bus::run::<Transfer, _>("TRANSFERS_TABLE", transfers::TABLE, transfers::row).await
}
