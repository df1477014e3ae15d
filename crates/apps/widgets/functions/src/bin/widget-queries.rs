//! Answers from the read models of widgets.

use widgets_functions::queries::widget::WidgetQueries;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    ledgerline_lambda::http::run(WidgetQueries::from_env).await
}
