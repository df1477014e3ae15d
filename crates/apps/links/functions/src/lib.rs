//! Users who rate links and follow each other: the functions. Each module holds what a binary runs.

pub mod commands;
pub mod process_managers;
pub mod projectors;
pub mod queries;
