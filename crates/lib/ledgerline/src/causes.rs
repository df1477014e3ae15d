//! Errors together with their causes, in one line.

use std::{error::Error, fmt};

/// Shows an error and then each of its causes. Logs need it, because the error's own text names
/// only what failed.
///
/// ```
/// use ledgerline::{Causes, StoreError};
///
/// let error = StoreError::Unavailable("the connection was closed".into());
/// assert_eq!(error.to_string(), "the store is unavailable");
/// assert_eq!(Causes(&error).to_string(), "the store is unavailable: the connection was closed");
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Causes<'a>(pub &'a dyn Error);

impl fmt::Display for Causes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}
