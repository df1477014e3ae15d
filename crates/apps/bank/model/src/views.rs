//! The read models, one module each: its row, its key, and how it changes.

pub mod balances;
pub mod bookings;
pub mod transactions;
pub mod transfers;
