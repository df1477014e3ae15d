//! The command functions. One module per aggregate reads the requests of its routes; its binary runs it.

pub mod account;
mod fields;
pub mod link;
pub mod todo;
pub mod transfer;
pub mod user;
pub mod widget;
