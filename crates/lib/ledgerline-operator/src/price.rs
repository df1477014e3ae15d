//! Prices of the database, in US dollars (docs/costs.md).

/// The price of a million read units.
pub(crate) const READS: f64 = 0.125;
/// The price of a million write units.
pub(crate) const WRITES: f64 = 0.625;
/// The price of a gigabyte for a month.
pub(crate) const STORAGE: f64 = 0.25;
