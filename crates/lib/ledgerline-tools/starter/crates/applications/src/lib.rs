//! The applications of this workspace: one line for each, here and in `Cargo.toml`. Code that works
//! with all aggregates finds them in this list.

#![deny(unused_crate_dependencies, reason = "an application in Cargo.toml has a line here")]

use ledgerline::{Aggregates, Visitor};

/// The aggregates of all applications.
#[derive(Debug)]
pub struct All;

impl Aggregates for All {
    fn visit(visitor: &mut impl Visitor) {
        north_depot::All::visit(visitor);
    }
}
