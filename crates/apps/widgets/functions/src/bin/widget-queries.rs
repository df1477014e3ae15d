//! Answers from the view of widgets.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    ledgerline_lambda::queries::run(widgets_functions::queries::widget::routes()).await
}
