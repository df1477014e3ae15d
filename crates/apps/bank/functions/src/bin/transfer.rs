//! Debits, credits and refunds accounts for transfers.

use bank_functions::process_managers::transfer::Transfers;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    ledgerline_lambda::process_manager::run(async |_, store| Ok(Transfers::new(store))).await
}
