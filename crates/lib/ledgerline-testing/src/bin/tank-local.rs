//! The local stack of the tank application, on which the libraries are tested.

use std::process::ExitCode;

/// The allocator of the program `local`. The allocator of the C library returns memory and requests
/// it again, which takes a fifth of the stack's time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    ledgerline_local::main::<ledgerline_tank::Depot>()
}
