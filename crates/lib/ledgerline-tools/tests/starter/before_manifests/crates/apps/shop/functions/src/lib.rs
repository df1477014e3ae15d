//! Shop: the functions.

pub mod commands;
pub mod queries;

ledgerline_lambda::handlers! {
    item_commands: ledgerline_lambda::commands::run(commands::item::routes());
    item_history_projector: ledgerline_lambda::log_projector::run(::shop::views::item_history::VIEW);
    items_projector: ledgerline_lambda::state_projector::run(::shop::views::items::VIEW);
    items_queries: ledgerline_lambda::queries::run(queries::items::routes());
}
