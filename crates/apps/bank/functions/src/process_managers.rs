//! The process managers: functions that do something about events, beyond tables.

pub mod transfer;
