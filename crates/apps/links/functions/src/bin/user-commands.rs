//! Handles the commands of users: registers them, changes their address for mails, and lets them
//! follow others.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    links_functions::user_commands().await
}
