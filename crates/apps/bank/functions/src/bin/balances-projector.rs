//! Writes the balance that an event carries, if it is newer than the row.

use bank::{account::Account, views::balances};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    ledgerline_lambda::bus::run::<Account, _>("BALANCES_TABLE", balances::TABLE, balances::row).await
}
