//! The environment of the process, read once at start. No other module reads it; only the SDK reads
//! the region and the credentials by itself.

use std::{collections::BTreeSet, env, fmt::Display, str::FromStr, sync::OnceLock};

use ledgerline::manifest::{Manifest, Name};

/// The variables that every function may read, in addition to those that begin with `AWS_`.
const EVERYWHERE: [&str; 2] = ["DEVELOPMENT_USER", "METRICS_NAMESPACE"];

/// The variables that this process may read. A runner sets it from the manifest of its function.
static DECLARED: OnceLock<BTreeSet<Name>> = OnceLock::new();

/// Declares the variables of a manifest. After this call, the process reads no others.
pub(crate) fn declare(manifest: &Manifest) {
    let declared = manifest.variables.union(&manifest.optional_variables).cloned().collect();
    // The variables can be declared once in a process. Only a test runs a second function in a
    // process, and that function is held to the manifest of the first.
    let _ = DECLARED.set(declared);
}

/// Whether this process may read the variable. It may read any variable until a runner declares a
/// manifest.
pub(crate) fn may_read(variable: &str) -> bool {
    DECLARED.get().is_none_or(|declared| is_among(declared, variable))
}

fn is_among(declared: &BTreeSet<Name>, variable: &str) -> bool {
    variable.starts_with("AWS_") || EVERYWHERE.contains(&variable) || declared.contains(variable)
}

/// A missing or wrong variable. A function with such a configuration does not start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The manifest of the function does not declare the variable, so no check would notice that it
    /// is missing.
    #[error(
        "the function reads the environment variable `{0}`, which its manifest does not declare"
    )]
    Undeclared(Name),
    /// The variable is not set, or empty.
    #[error("the environment variable `{0}` is not set")]
    Missing(Name),
    /// The value of the variable cannot be read.
    #[error("the environment variable `{name}` is not valid: {reason}")]
    Invalid {
        /// The name of the variable.
        name: Name,
        /// The reason why the value cannot be read.
        reason: String,
    },
}

/// Returns the value of a variable that must be set.
///
/// # Errors
/// When it is missing or empty, or the function's manifest does not declare it.
pub fn text(name: impl Into<Name>) -> Result<String, ConfigError> {
    let name = name.into();
    if !may_read(&name) {
        return Err(ConfigError::Undeclared(name));
    }
    env::var(&*name).ok().filter(|value| !value.is_empty()).ok_or(ConfigError::Missing(name))
}

/// Returns the value of a variable that must be set, parsed as a `T`.
///
/// # Errors
/// When it is missing or empty, cannot be read, or the function's manifest does not declare it.
pub(crate) fn parse<T: FromStr<Err: Display>>(name: &'static str) -> Result<T, ConfigError> {
    text(name)?.parse().map_err(|error: T::Err| ConfigError::Invalid {
        name: name.into(),
        reason: error.to_string(),
    })
}

/// Returns the value of a variable, parsed as a `T`, or `default` if it is missing or empty.
///
/// # Errors
/// When it cannot be read, or the function's manifest does not declare it.
pub fn parse_or<T: FromStr<Err: Display>>(
    name: &'static str,
    default: T,
) -> Result<T, ConfigError> {
    match parse(name) {
        Err(ConfigError::Missing(_)) => Ok(default),
        other => other,
    }
}

/// Returns the [`lines`] of a variable, or those of `default` if it is missing.
///
/// # Errors
/// When the function's manifest does not declare it.
pub(crate) fn lines_or(name: &'static str, default: &str) -> Result<Vec<String>, ConfigError> {
    match lines(name) {
        Err(ConfigError::Missing(_)) => Ok(default.lines().map(ToOwned::to_owned).collect()),
        other => other,
    }
}

/// Returns the value of a variable of the SDK's clients, if it is set. Its name begins with `AWS_`,
/// so every function may read it.
pub(crate) fn sdk_variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// Returns the lines of a variable that must be set and may be empty. Blank lines are left out.
///
/// # Errors
/// When it is missing, or the function's manifest does not declare it.
pub(crate) fn lines(name: &'static str) -> Result<Vec<String>, ConfigError> {
    if !may_read(name) {
        return Err(ConfigError::Undeclared(name.into()));
    }
    let value = env::var(name).map_err(|_| ConfigError::Missing(name.into()))?;
    let lines = value.lines().map(str::trim).filter(|line| !line.is_empty());
    Ok(lines.map(ToOwned::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_reads_only_its_declared_variables_and_those_of_every_function() {
        let declared = BTreeSet::from(["COMMITS_TABLE".into()]);
        for (variable, may) in [
            ("COMMITS_TABLE", true),
            ("AWS_LAMBDA_LOG_LEVEL", true),
            ("METRICS_NAMESPACE", true),
            ("REQUESTS_TABLE", false),
        ] {
            assert_eq!(is_among(&declared, variable), may, "{variable}");
        }
    }
}
