//! The query functions: they answer the reading routes from the read models.

pub mod rating;
pub mod search;
