//! `cargo xtask`: checks of what the compiler cannot see, and the other tools of this workspace.

use std::process::ExitCode;

fn main() -> ExitCode {
    ledgerline_tools::main::<applications::All>()
}
