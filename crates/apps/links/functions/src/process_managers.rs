//! The process managers: functions that react to commits with commands, or with calls to other
//! systems.

pub mod welcome_email;
