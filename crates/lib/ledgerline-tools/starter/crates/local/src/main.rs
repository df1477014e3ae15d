//! The program `local`: runs the whole of `template.yaml` on a laptop.

use std::process::ExitCode;

/// Replaces the allocator of the C library, which took a fifth of the stack's processor time: it
/// constantly returned memory to the system and requested it again.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    ledgerline_local::main::<applications::All>()
}
