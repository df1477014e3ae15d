//! Debits, credits and refunds accounts for transfers.

use lambda_kit::config;
use process_managers::transfer::Transfers;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_kit::Error> {
    lambda_kit::process_manager::run(async |_, store| {
        Ok(Transfers::new(store.with_requests(config::text("REQUESTS_TABLE")?)))
    })
    .await
}
