//! Widgets in stock: the aggregates and their views. Each aggregate is one module, always in the
//! same order (values, events, state, decisions).

pub mod views;
pub mod widget;

use ledgerline::{Aggregates, Visitor};

/// All aggregates and rows of this application.
#[derive(Debug)]
pub struct All;

impl Aggregates for All {
    fn visit(visitor: &mut impl Visitor) {
        visitor.row::<views::widgets::Row>("widgets");
        visitor.visit::<widget::Widget>();
    }
}
