//! The read models, one module each: its row, its key, and how it changes.

pub mod stock_cards;
pub mod stock_diary;
pub mod stock_journal;
pub mod stock_owners;
pub mod stock_signs;
pub mod stock_totals;
