//! The query functions: they answer the reading routes from the read models.

pub mod account;
pub mod bookings;
pub mod search;
pub mod transfer;
