//! The command functions, one module per aggregate. A module reads the requests of its routes.

pub mod stock_item;
