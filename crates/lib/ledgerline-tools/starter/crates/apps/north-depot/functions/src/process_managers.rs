//! The process managers: functions that do something about events, beyond tables.

pub mod stock_labels;
pub mod stock_notices;
