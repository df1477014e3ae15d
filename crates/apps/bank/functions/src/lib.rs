//! Accounts and transfers between them: the functions. Each module holds what a binary runs.

pub mod commands;
pub mod process_managers;
pub mod queries;
