//! Sends the commands that hauls make due.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    ledgerline_lambda::process_manager::run(async |_, store| {
        Ok(ledgerline_tank::process_manager::Hauls::new(store))
    })
    .await
}
