//! The program `proofs`: tries to lose an event, and to apply one twice.

use std::process::ExitCode;

fn main() -> ExitCode {
    ledgerline_proofs::main()
}
