//! `ledger`: the operator's tool. It inspects a stack, finds commits that subscribers lack, and
//! redelivers them.

use std::process::ExitCode;

fn main() -> ExitCode {
    ledgerline_operator::main::<applications::All>()
}
