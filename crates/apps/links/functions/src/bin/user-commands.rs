//! Creates and renames users.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    ledgerline_lambda::commands::run(links_functions::commands::user::route).await
}
