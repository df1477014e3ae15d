//! The program `ledger`: shows a stack, compares its subscribers with its log, and repairs them.

use std::process::ExitCode;

fn main() -> ExitCode {
    ledgerline_operator::main::<applications::All>()
}
