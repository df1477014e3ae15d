//! Users who rate links and follow each other: the aggregates, the values of their commands, and
//! their views. Each aggregate is one module, always in the same order (id, events, state,
//! decisions).

pub mod link;
pub mod user;
pub mod values;
pub mod views;

use ledgerline::{Aggregates, Visitor};

/// All aggregates and rows of this application.
#[derive(Debug)]
pub struct All;

impl Aggregates for All {
    fn visit(visitor: &mut impl Visitor) {
        visitor.row::<views::feeds::Entry>("feed-entries");
        visitor.row::<views::feeds::Follow>("feed-following");
        visitor.row::<views::feeds::Rating>("feed-ratings");
        visitor.row::<views::feeds::Recent>("feed-recent");
        visitor.row::<views::link_ratings::Row>("link-ratings");
        visitor.row::<views::link_search::Row>("link-search");
        visitor.row::<views::link_ratings::Summary>("link-summaries");
        visitor.row::<views::user_ratings::Row>("user-ratings");
        visitor.visit::<link::Link>();
        visitor.visit::<user::User>();
    }
}
