//! Todos: the aggregates and their views. Each aggregate is one module, always in the same order
//! (values, events, state, decisions).

pub mod todo;
pub mod views;

use ledgerline::{Aggregates, Visitor};

/// All aggregates and rows of this application.
#[derive(Debug)]
pub struct All;

impl Aggregates for All {
    fn visit(visitor: &mut impl Visitor) {
        visitor.row::<views::todos::Row>("todos");
        visitor.visit::<todo::Todo>();
    }
}
