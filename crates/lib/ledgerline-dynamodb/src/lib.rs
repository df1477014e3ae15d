#![doc = include_str!("../README.md")]

mod archive;
mod attempts;
mod bodies;
mod body_object;
mod endpoint;
mod error;
mod inserts;
mod item;
mod payload;
pub mod reconcile;
mod scan;
mod snapshots;
mod store;
mod views;

pub use archive::{Archive, ArchiveCounts, StoredCommit, Survey};
pub use bodies::Bodies;
pub use endpoint::{Units, capacity_units, sdk_config};
pub use item::{CommitImage, InvalidItem, MAX_ITEM_BYTES, commit_from_image, is_stub_image};
pub use scan::{Head, ScanPart, Scanned};
pub use store::DynamoDbStore;
pub use views::{
    Checkpoint, Cleared, Generations, InvalidTransition, KeyNames, LogRows, MAX_CHANGES, Marks,
    Move, NextCheckpoint, OrderedRows, Page, PageQuery, Phase, Previous, ReadPositions, RowKey,
    SegmentProgress, Standby, StateRows, StreamPosition, UnreadableRow, ViewTable, read_cursor,
    write_cursor,
};
