//! Accounts and transfers between them: the aggregates, the values of their commands, and their
//! views. Each aggregate is one module, always in the same order (events, state, decisions).

pub mod account;
pub mod transfer;
pub mod values;
pub mod views;

use ledgerline::{Aggregates, Visitor};

/// All aggregates and rows of this application.
#[derive(Debug)]
pub struct All;

impl Aggregates for All {
    fn visit(visitor: &mut impl Visitor) {
        visitor.row::<views::balances::Row>("balances");
        visitor.row::<views::bookings::Row>("bookings");
        visitor.row::<views::bookings::Books>("books");
        visitor.row::<views::transactions::Row>("transactions");
        visitor.row::<views::transfers::Row>("transfers");
        visitor.visit::<account::Account>();
        visitor.visit::<transfer::Transfer>();
    }
}
