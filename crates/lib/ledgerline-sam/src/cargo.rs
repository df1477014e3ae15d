//! The command that runs cargo.

use std::process::Command;

/// Returns a command for cargo that behaves as if a shell had started it.
#[must_use]
pub fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    remove_package_variables(&mut cargo);
    cargo
}

/// Removes the variables that cargo sets for the package of a running program from a command that
/// runs cargo. A nested cargo would pass these variables on to build scripts. The script of ring
/// runs again if they differ. So each build that a test or a task starts would recompile all
/// packages above ring: the runtime and all applications.
pub fn remove_package_variables(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let begins = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "OUT_DIR"];
        if name.to_str().is_some_and(|name| begins.iter().any(|begin| name.starts_with(begin))) {
            command.env_remove(&name);
        }
    }
}
