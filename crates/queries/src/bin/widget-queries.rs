//! Answers from the read models of widgets.

use queries::widget::WidgetQueries;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_kit::Error> {
    lambda_kit::http::run(WidgetQueries::from_env).await
}
