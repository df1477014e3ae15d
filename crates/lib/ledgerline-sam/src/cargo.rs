//! Cargo, as a program that the tools start.

use std::process::Command;

/// Cargo, from within a program that cargo runs, as if it came from a shell. Cargo tells the
/// program which package it is of, and passes what it finds there on to build scripts. The script
/// of ring asks for these variables: with others it runs again, and everything above ring, the
/// runtime and all applications, is compiled again each time that a test or a task builds
/// something.
#[must_use]
pub fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in std::env::vars_os() {
        let of_a_package = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "OUT_DIR"];
        if name
            .to_str()
            .is_some_and(|name| of_a_package.iter().any(|begin| name.starts_with(begin)))
        {
            cargo.env_remove(&name);
        }
    }
    cargo
}
