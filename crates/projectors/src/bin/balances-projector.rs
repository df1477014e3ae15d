//! Writes the balance that an event carries, if it is newer than the row.

use domain::account::Account;
use read_models::balances;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_kit::Error> {
    lambda_kit::bus::run::<Account, _>("BALANCES_TABLE", balances::TABLE, balances::row).await
}
