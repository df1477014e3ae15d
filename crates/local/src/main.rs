//! `cargo run -p local`: the whole of `template.yaml` on a laptop.

use std::process::ExitCode;

/// The allocator of the stack. A fifth of the stack's time was spent in that of the C library, which gives memory back and takes it again all the
/// time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    ledgerline_local::main()
}
