//! `ledger`: looks at a stack, finds what is missing behind its log, and mends it.

use std::process::ExitCode;

fn main() -> ExitCode {
    ledgerline_operator::main::<applications::All>()
}
