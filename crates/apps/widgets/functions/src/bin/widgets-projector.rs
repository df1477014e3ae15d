//! Writes the widgets that an event carries, if it is newer than the row.

use ::widgets::{views::widgets, widget::Widget};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    ledgerline_lambda::bus::run::<Widget, _>("WIDGETS_TABLE", widgets::TABLE, widgets::row).await
}
