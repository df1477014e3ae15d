//! The queries, one module for each read model.

pub mod stock_cards;
pub mod stock_journal;
pub mod stock_owners;
