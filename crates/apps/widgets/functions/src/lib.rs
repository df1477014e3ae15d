//! Widgets in stock: the functions. Each handler is the function of a binary.

pub mod commands;
pub mod queries;

ledgerline_lambda::handlers! {
    widget_commands: ledgerline_lambda::commands::run(commands::widget::routes());
    widget_queries: ledgerline_lambda::queries::run(queries::widget::routes());
    widgets_projector: ledgerline_lambda::state_projector::run_on_bus(widgets::views::widgets::VIEW);
}
