//! Takes the commands of users: registers them, changes their address for mails, and has them follow others.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    ledgerline_lambda::commands::run(links_functions::commands::user::routes()).await
}
