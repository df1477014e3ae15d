//! Debits, credits and refunds accounts for transfers.

use bank_functions::process_managers::transfer::Transfers;
use ledgerline_lambda::config;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    ledgerline_lambda::process_manager::run(async |_, store| {
        Ok(Transfers::new(store.with_requests(config::text("REQUESTS_TABLE")?)))
    })
    .await
}
