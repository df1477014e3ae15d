#![doc = include_str!("../README.md")]

mod endpoint;
mod error;
mod item;
mod read_table;
pub mod reconcile;
mod scan;
mod snapshots;
mod store;
mod tries;

pub use endpoint::{consumed, sdk_config};
pub use item::{InvalidItem, MAX_ITEM_BYTES, commit_from_image};
pub use read_table::{
    Before, Checkpoint, Cleared, FRESH, Generations, Inserted, Insertion, InvalidCursor, KeyNames,
    MAX_CHANGES, Move, NextCheckpoint, NotNow, OrderedRows, Other, Overwrite, Page, PageQuery, Part, Phase,
    Reached, ReadTable, RowKey, SWITCHING, TableError, UnreadableRow,
};
pub use scan::{Head, ScanPart, Scanned};
pub use store::DynamoDbStore;
