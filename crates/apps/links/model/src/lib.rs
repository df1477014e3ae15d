//! Users who rate links and follow each other: the aggregates, the values of their commands, and
//! their views. Each aggregate is one module, always in the same order (id, events, state,
//! decisions).

pub mod link;
pub mod user;
pub mod values;
pub mod views;

use ledgerline::{Aggregates, Visitor};

/// All aggregates of this application.
#[derive(Debug)]
pub struct All;

impl Aggregates for All {
    fn visit(visitor: &mut impl Visitor) {
        visitor.visit::<link::Link>();
        visitor.visit::<user::User>();
    }
}
