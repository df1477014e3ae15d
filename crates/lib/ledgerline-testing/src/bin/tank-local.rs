//! The local stack of the application on which the libraries are tested.

use std::process::ExitCode;

/// The allocator of the program `local`: the C library's gives memory back and takes it again, a
/// fifth of the stack's time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    ledgerline_local::main::<ledgerline_tank::Depot>()
}
