//! `cargo run --profile fast -p proofs`: tries to lose an event, and to apply one twice.

use std::process::ExitCode;

fn main() -> ExitCode {
    ledgerline_proofs::main()
}
