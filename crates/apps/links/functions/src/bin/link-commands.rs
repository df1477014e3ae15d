//! Takes the commands of links: rates them.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    ledgerline_lambda::commands::run(links_functions::commands::link::routes()).await
}
