//! `cargo xtask`: what the compiler cannot see.

use std::process::ExitCode;

fn main() -> ExitCode {
    ledgerline_tools::main::<applications::All>()
}
