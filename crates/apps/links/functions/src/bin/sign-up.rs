//! Registers each person who has signed up in the user pool.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    links_functions::sign_up().await
}
