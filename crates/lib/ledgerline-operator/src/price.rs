//! Prices of the database and of the bucket, in US dollars (docs/costs.md).

/// The price of a million read units.
pub(crate) const READS: f64 = 0.125;
/// The price of a million write units.
pub(crate) const WRITES: f64 = 0.625;
/// The price of a gigabyte for a month.
pub(crate) const STORAGE: f64 = 0.25;
/// The price of a gigabyte of continuous backup for a month.
pub(crate) const BACKUP: f64 = 0.20;
/// The price of a million new objects.
pub(crate) const PUT: f64 = 5.0;
/// The price of a million reads of objects.
pub(crate) const GET: f64 = 0.4;
/// The price of a gigabyte of objects for a month.
pub(crate) const OBJECTS: f64 = 0.023;
