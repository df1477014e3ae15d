//! Creates and renames links.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    ledgerline_lambda::commands::run(links_functions::commands::link::route).await
}
