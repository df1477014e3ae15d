//! `cargo xtask`: the checks that the compiler cannot make, and the generators of this repository.

use std::process::ExitCode;

fn main() -> ExitCode {
    ledgerline_tools::main::<applications::All>()
}
