//! The process managers: functions that react to commits with commands or effects outside.

pub mod stock_labels;
pub mod stock_notices;
