//! Answers from the views of tanks.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    ledgerline_lambda::queries::run(ledgerline_tank::queries::tanks()).await
}
