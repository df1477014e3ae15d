//! Writes the transfers that an event carries, if it is newer than the row.

use domain::transfer::Transfer;
use read_models::transfers;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_kit::Error> {
    lambda_kit::bus::run::<Transfer, _>("TRANSFERS_TABLE", transfers::TABLE, transfers::row).await
}
