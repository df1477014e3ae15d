//! North depot: the aggregates, one module each, always in the same order (values, events, state,
//! decisions), and their views.

pub mod price_tag;
pub mod stock_item;
pub mod views;

use ledgerline::{Aggregates, Visitor};

/// All aggregates and rows of this application.
#[derive(Debug)]
pub struct All;

impl Aggregates for All {
    fn visit(visitor: &mut impl Visitor) {
        visitor.row::<views::stock_cards::Row>("stock_cards");
        visitor.row::<views::stock_diary::Row>("stock_diary");
        visitor.row::<views::stock_journal::Row>("stock_journal");
        visitor.row::<views::stock_owners::Row>("stock_owners");
        visitor.row::<views::stock_signs::Row>("stock_signs");
        visitor.row::<views::stock_totals::Row>("stock_totals");
        visitor.visit::<price_tag::PriceTag>();
        visitor.visit::<stock_item::StockItem>();
    }
}
