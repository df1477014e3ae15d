#![doc = include_str!("../README.md")]

mod endpoint;
mod error;
mod item;
pub mod reconcile;
mod scan;
mod snapshots;
mod store;
mod tries;
mod views;

pub use endpoint::{consumed, sdk_config};
pub use item::{InvalidItem, MAX_ITEM_BYTES, commit_from_image};
pub use scan::{Head, ScanPart, Scanned};
pub use store::DynamoDbStore;
pub use views::{
    Applied, Before, Checkpoint, Cleared, CommitBatch, Delivery, FRESH, Generations, InvalidCursor, KeyNames,
    LogRows, MAX_CHANGES, Move, NextCheckpoint, NotNow, OrderedRows, Other, Overwrite, Page, PageQuery, Part,
    Phase, Reached, RowKey, SWITCHING, StateRows, TableError, UnreadableRow, ViewTable,
};
