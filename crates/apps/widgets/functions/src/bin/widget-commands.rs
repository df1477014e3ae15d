//! Creates and renames widgets.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    ledgerline_lambda::commands::run(widgets_functions::commands::widget::route).await
}
