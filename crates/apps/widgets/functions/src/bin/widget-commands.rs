//! Takes the commands of widgets: creates and changes them.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    ledgerline_lambda::commands::run(widgets_functions::commands::widget::routes()).await
}
