//! Writes the balance of an account from the state in an event, unless the row shows that version
//! or a newer one.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    bank_functions::balances_projector().await
}
