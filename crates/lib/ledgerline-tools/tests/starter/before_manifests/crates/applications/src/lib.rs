//! The applications of this workspace. The list is in `Cargo.toml`; an application is deleted together with its line there.

use ledgerline::{Aggregates, Visitor};

/// The aggregates of all applications.
#[derive(Debug)]
pub struct All;

impl Aggregates for All {
    fn visit(visitor: &mut impl Visitor) {
        visit_all(visitor);
    }
}

include!(concat!(env!("OUT_DIR"), "/all.rs"));
