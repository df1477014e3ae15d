//! The read models, one module each: the row, its key, and the code that writes it.

pub mod stock_cards;
pub mod stock_diary;
pub mod stock_journal;
pub mod stock_owners;
pub mod stock_signs;
pub mod stock_totals;
