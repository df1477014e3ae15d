//! The query functions. One module per application answers its reading routes; its binary runs it.

pub mod account;
