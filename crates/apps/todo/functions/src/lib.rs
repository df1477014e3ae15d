//! Todos: the functions. Each handler is the function of a binary.

pub mod commands;
pub mod queries;

ledgerline_lambda::handlers! {
    todo_commands: ledgerline_lambda::commands::run(commands::todo::routes());
    todo_queries: ledgerline_lambda::queries::run(queries::todo::routes());
    todos_projector: ledgerline_lambda::state_projector::run(todo::views::todos::VIEW);
}
