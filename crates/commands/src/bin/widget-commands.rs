//! Creates and renames widgets.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_kit::Error> {
    lambda_kit::commands::run(commands::widget::route).await
}
