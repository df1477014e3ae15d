//! Creates and renames links.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_kit::Error> {
    lambda_kit::commands::run(commands::link::route).await
}
