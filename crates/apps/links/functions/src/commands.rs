//! The command functions, one module per aggregate: each module reads the requests of its routes.

pub mod link;
pub mod user;
