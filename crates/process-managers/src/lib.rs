//! The process managers: functions that do something about events, beyond tables. One module each; its binary runs it.
