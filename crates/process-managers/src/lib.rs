//! The process managers: functions that do something about events, beyond tables. One module each; its binary runs it.

pub mod transfer;
pub mod welcome_email;
