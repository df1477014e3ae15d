//! The event store of [`ledgerline`] on DynamoDB, and its read tables: rows that are written only under their guard,
//! and read back one by one or in pages.

mod error;
mod item;
mod read_table;
mod store;

pub use item::{InvalidItem, Keys, MAX_ITEM_BYTES, commit_from_item, keys_from_item};
pub use read_table::{InvalidCursor, Page, PageQuery, ReadTable, TableError};
pub use store::DynamoDbStore;
