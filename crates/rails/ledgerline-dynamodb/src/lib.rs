#![doc = include_str!("../README.md")]

mod error;
mod item;
mod kept;
mod read_table;
mod scan;
mod store;
mod tries;

pub use item::{InvalidItem, MAX_ITEM_BYTES, commit_from_image};
pub use read_table::{
    Checkpoint, InvalidCursor, MAX_CHANGES, Overwrite, Page, PageQuery, Reached, ReadTable, TableError,
};
pub use scan::Head;
pub use store::DynamoDbStore;
