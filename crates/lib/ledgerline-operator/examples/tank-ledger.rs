//! The operator's tool with the aggregates of the tank application, on which the libraries are
//! tested.

use std::process::ExitCode;

fn main() -> ExitCode {
    ledgerline_operator::main::<ledgerline_tank::Depot>()
}
