//! The environment of the process, read once at start. No other module reads it; only the SDK reads the region and the credentials by
//! itself.

use std::{env, fmt::Display, str::FromStr};

use crate::needs::may_read;

/// A variable that is missing or wrong. A function with such a configuration does not start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The function reads the variable but does not name it among its needs, so no check would notice that it is missing.
    #[error("the function reads the environment variable {0}, and does not say that it needs it")]
    Undeclared(&'static str),
    /// The variable is not set, or empty.
    #[error("the environment variable {0} is not set")]
    Missing(&'static str),
    /// The value of the variable cannot be read.
    #[error("the environment variable {name} is wrong: {reason}")]
    Invalid {
        /// The name of the variable.
        name: &'static str,
        /// The reason why the value cannot be read.
        reason: String,
    },
}

/// The value of a variable that must be set.
///
/// # Errors
/// When it is missing or empty, or the function does not name it among its needs.
pub fn text(name: &'static str) -> Result<String, ConfigError> {
    if !may_read(name) {
        return Err(ConfigError::Undeclared(name));
    }
    env::var(name).ok().filter(|value| !value.is_empty()).ok_or(ConfigError::Missing(name))
}

/// The value of a variable that must be set, parsed as a `T`.
///
/// # Errors
/// When it is missing or empty, cannot be read, or the function does not name it among its needs.
pub fn parsed<T: FromStr<Err: Display>>(name: &'static str) -> Result<T, ConfigError> {
    text(name)?.parse().map_err(|error: T::Err| ConfigError::Invalid { name, reason: error.to_string() })
}

/// The value of a variable, parsed as a `T`, or `default` if it is missing or empty.
///
/// # Errors
/// When it cannot be read, or the function does not name it among its needs.
pub fn parsed_or<T: FromStr<Err: Display>>(name: &'static str, default: T) -> Result<T, ConfigError> {
    match parsed(name) {
        Err(ConfigError::Missing(_)) => Ok(default),
        other => other,
    }
}

/// The [`lines`] of a variable, or those of `default` if it is missing.
///
/// # Errors
/// When the function does not name it among its needs.
pub(crate) fn lines_or(name: &'static str, default: &str) -> Result<Vec<String>, ConfigError> {
    match lines(name) {
        Err(ConfigError::Missing(_)) => Ok(default.lines().map(ToOwned::to_owned).collect()),
        other => other,
    }
}

/// The value of a variable that the SDK's clients read, if it is set. Its name begins with `AWS_`, so every function may read it.
pub(crate) fn of_the_sdk(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// The lines of a variable that must be set and may be empty. Blank ones are left out.
///
/// # Errors
/// When it is missing, or the function does not name it among its needs.
pub fn lines(name: &'static str) -> Result<Vec<String>, ConfigError> {
    if !may_read(name) {
        return Err(ConfigError::Undeclared(name));
    }
    let value = env::var(name).map_err(|_| ConfigError::Missing(name))?;
    let lines = value.lines().map(str::trim).filter(|line| !line.is_empty());
    Ok(lines.map(ToOwned::to_owned).collect())
}
