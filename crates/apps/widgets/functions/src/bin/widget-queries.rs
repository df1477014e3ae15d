//! Answers from the view of widgets.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    widgets_functions::widget_queries().await
}
