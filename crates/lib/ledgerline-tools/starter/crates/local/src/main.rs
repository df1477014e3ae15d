//! `cargo run -p local`: the whole of `template.yaml` on a laptop.

use std::process::ExitCode;

/// A fifth of the stack's time went into the C library's, which gives memory back and takes it
/// again all the time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    ledgerline_local::main::<applications::All>()
}
