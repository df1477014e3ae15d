//! Accounts and transfers between them: the functions. Each handler is the function of a binary.

pub mod commands;
pub mod process_managers;
pub mod queries;

use process_managers::transfer::Transfers;

ledgerline_lambda::handlers! {
    account_commands: ledgerline_lambda::commands::run(commands::account::routes());
    account_queries: ledgerline_lambda::queries::run(queries::account::routes());
    balances_projector: ledgerline_lambda::state_projector::run(bank::views::balances::VIEW);
    bookings_queries: ledgerline_lambda::queries::run(queries::bookings::routes());
    bookings_subscription: ledgerline_lambda::subscription::run(bank::views::bookings::VIEW);
    transactions_projector: ledgerline_lambda::log_projector::run(bank::views::transactions::VIEW);
    transactions_search_queries: ledgerline_lambda::queries::run(queries::search::routes());
    transactions_search_projector: ledgerline_postgres::log_projector::run(
        bank::views::transactions::VIEW,
        bank::views::transactions::SQL,
    );
    transfer: ledgerline_lambda::process_manager::run(async |_, store| Ok(Transfers::new(store)));
    transfer_commands: ledgerline_lambda::commands::run(commands::transfer::routes());
    transfer_queries: ledgerline_lambda::queries::run(queries::transfer::routes());
    transfers_projector: ledgerline_lambda::state_projector::run(bank::views::transfers::VIEW);
}
