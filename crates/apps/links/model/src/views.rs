//! The read models, one module each: its row, its key, and how it changes.

pub mod feeds;
pub mod link_ratings;
pub mod link_search;
pub mod user_ratings;
