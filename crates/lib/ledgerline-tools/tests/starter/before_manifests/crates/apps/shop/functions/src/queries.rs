//! What can be asked, one module for each read model.

pub mod items;
