//! Answers from the view of transfers.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    ledgerline_lambda::queries::run(bank_functions::queries::transfer::routes()).await
}
