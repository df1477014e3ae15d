//! Welcomes new users with a mail.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    links_functions::welcome_email().await
}
