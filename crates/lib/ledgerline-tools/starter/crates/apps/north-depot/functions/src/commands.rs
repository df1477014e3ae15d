//! The command functions, one module per aggregate: it reads the requests of its routes.

pub mod stock_item;
