//! The read models, one module each: its row, its key, and how it changes.

pub mod item_history;
pub mod items;
