//! Handles the commands of widgets: creates and changes them.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    widgets_functions::widget_commands().await
}
