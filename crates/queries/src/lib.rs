//! The query functions. One module per application answers its reading routes; its binary runs it.

pub mod account;
pub mod rating;
pub mod todo;
pub mod transfer;
pub mod widget;
