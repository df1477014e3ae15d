//! North depot: the functions.

pub mod commands;
pub mod process_managers;
pub mod queries;

ledgerline_lambda::handlers! {
    stock_cards_projector: ledgerline_lambda::state_projector::run(::north_depot::views::stock_cards::VIEW);
    stock_cards_queries: ledgerline_lambda::queries::run(queries::stock_cards::routes());
    stock_diary_subscription: ledgerline_lambda::subscription::run(::north_depot::views::stock_diary::VIEW);
    stock_item_commands: ledgerline_lambda::commands::run(commands::stock_item::routes());
    stock_journal_projector: ledgerline_lambda::log_projector::run(::north_depot::views::stock_journal::VIEW);
    stock_journal_queries: ledgerline_lambda::queries::run(queries::stock_journal::routes());
    stock_labels: ledgerline_lambda::process_manager::run(async |_, store| Ok(process_managers::stock_labels::StockLabels::new(store)));
    stock_notices: ledgerline_lambda::process_manager::run(async |_, _| Ok(process_managers::stock_notices::StockNotices));
    stock_owners_projector: ledgerline_lambda::state_projector::run(::north_depot::views::stock_owners::VIEW);
    stock_owners_queries: ledgerline_lambda::queries::run(queries::stock_owners::routes());
    stock_signs_projector: ledgerline_lambda::state_projector::run_on_bus(::north_depot::views::stock_signs::VIEW);
    stock_totals_projector: ledgerline_lambda::log_projector::run(::north_depot::views::stock_totals::VIEW);
}
