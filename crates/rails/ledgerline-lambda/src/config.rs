//! The environment, read once at start: the only place that reads it.

use std::{env, fmt::Display, str::FromStr};

use crate::needs::may_read;

/// A variable that is missing or wrong. A function with such a configuration does not start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The function reads it and does not name it among its needs, so that no check would notice where it is missing.
    #[error("the function reads the environment variable {0}, and does not say that it needs it")]
    Undeclared(&'static str),
    /// It is not set, or empty.
    #[error("the environment variable {0} is not set")]
    Missing(&'static str),
    /// Its value cannot be read.
    #[error("the environment variable {name} is wrong: {reason}")]
    Invalid {
        /// Its name.
        name: &'static str,
        /// Why.
        reason: String,
    },
}

/// The value of a variable that must be set.
///
/// # Errors
/// When it is missing or empty.
pub fn text(name: &'static str) -> Result<String, ConfigError> {
    if !may_read(name) {
        return Err(ConfigError::Undeclared(name));
    }
    env::var(name).ok().filter(|value| !value.is_empty()).ok_or(ConfigError::Missing(name))
}

/// The value of a variable that must be set, as what it means.
///
/// # Errors
/// When it is missing, empty or cannot be read.
pub fn parsed<T: FromStr<Err: Display>>(name: &'static str) -> Result<T, ConfigError> {
    text(name)?.parse().map_err(|error: T::Err| ConfigError::Invalid { name, reason: error.to_string() })
}

/// The same, with a value for where it is not set.
///
/// # Errors
/// When it is set and cannot be read.
pub fn parsed_or<T: FromStr<Err: Display>>(name: &'static str, default: T) -> Result<T, ConfigError> {
    match parsed(name) {
        Err(ConfigError::Missing(_)) => Ok(default),
        other => other,
    }
}

/// The same of a variable that may be missing.
///
/// # Errors
/// When the function does not name it.
pub(crate) fn lines_or(name: &'static str, default: &str) -> Result<Vec<String>, ConfigError> {
    match lines(name) {
        Err(ConfigError::Missing(_)) => Ok(default.lines().map(ToOwned::to_owned).collect()),
        other => other,
    }
}

/// What the SDK's clients read, where it is set: names that begin with `AWS_`, which every function may read.
pub(crate) fn of_the_sdk(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// The lines of a variable that must be set and may be empty. Blank ones are left out.
///
/// # Errors
/// When it is missing.
pub fn lines(name: &'static str) -> Result<Vec<String>, ConfigError> {
    if !may_read(name) {
        return Err(ConfigError::Undeclared(name));
    }
    let value = env::var(name).map_err(|_| ConfigError::Missing(name))?;
    let lines = value.lines().map(str::trim).filter(|line| !line.is_empty());
    Ok(lines.map(ToOwned::to_owned).collect())
}
