#![doc = include_str!("../README.md")]

mod database;
mod log_reader;
mod log_view;
mod password;
mod projectors;
mod row_writes;
mod server_error;
mod state_view;
mod tables;

pub use self::{
    database::{Database, InvalidDatabase},
    log_reader::{LogReader, Selection},
    log_view::PostgresLogRows,
    projectors::{log_projector, state_projector},
    state_view::PostgresStateRows,
};
