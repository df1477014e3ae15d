//! Widgets in stock: the functions. Each module holds what a binary runs.

pub mod commands;
pub mod queries;
