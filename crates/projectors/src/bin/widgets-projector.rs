//! Writes the widgets that an event carries, if it is newer than the row.

use domain::widget::Widget;
use read_models::widgets;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_kit::Error> {
    lambda_kit::bus::run::<Widget, _>("WIDGETS_TABLE", widgets::TABLE, widgets::row).await
}
