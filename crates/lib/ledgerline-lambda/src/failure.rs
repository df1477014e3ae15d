//! The error of every function.

/// The error of a function that cannot start, or of an event that it cannot handle.
pub type Error = Box<dyn std::error::Error + Send + Sync>;
