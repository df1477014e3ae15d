//! The views of the application: levels from states, readings and fills from the log, and the stock
//! in the order of `$all`.

use jiff::Timestamp;
use ledgerline::{
    Aggregate, Changes, ChangesError, Commit, DecodeError, Index, LogTable, LogView, OrderedView,
    Projection, StateTable, StateView, Write, decode,
    testing::tank::{Event, Installed, State, Tank},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::haul::Haul;

/// The tanks of the caller who installed them. The index holds keys alone, so a fill does not write
/// it.
pub const OF_INSTALLER: Index = Index {
    name: "ofInstaller",
    partition: "installedBy",
    sort: "tankId",
    projection: Projection::KeysOnly,
};

/// The tanks with a liquid. The index holds rows.
pub const OF_LIQUID: Index =
    Index { name: "ofLiquid", partition: "liquid", sort: "tankId", projection: Projection::All };

/// The table of the levels.
pub const LEVELS: StateTable =
    StateTable { variable: "LEVELS_TABLE", key: "tankId", indexes: &[OF_INSTALLER, OF_LIQUID] };

/// The view of the levels: one row for each tank.
pub const LEVELS_VIEW: StateView<Tank, Level> = StateView { table: LEVELS, row: level };

/// A row of the levels: the content of a tank.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Level {
    /// The key of the row.
    pub tank_id: String,
    /// The partition key of an index. A tank that no caller installed is in no list of a caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub installed_by: Option<String>,
    /// The site of the tank.
    pub site: String,
    /// The liquid, the partition key of an index.
    pub liquid: String,
    /// The level in litres.
    pub level: i64,
    /// The version of the tank that the row shows.
    pub version: u64,
}

/// The row of a tank. A scrapped tank has no row.
#[must_use]
pub fn level(id: &str, version: u64, state: State) -> Option<Level> {
    let State::Installed(Installed { site, liquid, installed_by, level }) = state else {
        return None;
    };
    Some(Level { tank_id: id.to_owned(), installed_by, site, liquid, level, version })
}

/// The table of the readings.
pub const READINGS: LogTable =
    LogTable { variable: "READINGS_TABLE", partition: "tankId", sort: "entry" };

/// The view of the readings: a row for each amount that came into a tank or went out of it.
pub const READINGS_VIEW: LogView =
    LogView { table: READINGS, of: &[Tank::CATEGORY], writes: &[Write::Insert], changes: readings };

/// A row of the readings.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Reading {
    /// Partition key.
    pub tank_id: String,
    /// Sort key: the version and the place in the commit, so that text order is the order of the
    /// log.
    pub entry: String,
    /// The version of the tank after the commit.
    pub version: u64,
    /// The litres that came in; less than 0 if they went out.
    pub amount: i64,
    /// The level after this change, in litres.
    pub level: i64,
    /// The time of the commit.
    pub at: Timestamp,
}

/// The rows that a commit adds to the readings.
///
/// # Errors
/// When an event of it cannot be read.
pub fn readings_of(commit: &Commit) -> Result<Vec<Reading>, DecodeError> {
    let mut rows = Vec::new();
    for (place, recorded) in commit.events.iter().enumerate() {
        let Some((amount, level)) = moved(&decode::<Tank>(recorded)?) else { continue };
        rows.push(Reading {
            tank_id: commit.stream.id().to_owned(),
            entry: commit.entry(place),
            version: commit.version,
            amount,
            level,
            at: commit.at,
        });
    }
    Ok(rows)
}

fn readings(commit: &Commit) -> Result<Changes, ChangesError> {
    let mut changes = Changes::new(READINGS);
    for row in readings_of(commit)? {
        changes.insert(commit, &row)?;
    }
    Ok(changes)
}

/// The litres that an event moves into a tank, and the level after it; `None` if it moves nothing.
fn moved(event: &Event) -> Option<(i64, i64)> {
    match event {
        Event::TankFilled { amount, level, note: _, on: _ } => Some((*amount, *level)),
        Event::TankDrawn { amount, level, note: _, on: _ } => Some((-amount, *level)),
        Event::TankInstalled { .. } | Event::TankMoved { .. } | Event::TankScrapped { .. } => None,
    }
}

/// The table of the fills.
pub const FILLS: LogTable =
    LogTable { variable: "FILLS_TABLE", partition: "tankId", sort: "entry" };

/// The view of the fills: the amounts that came into and went out of each tank, and the sum of
/// those that came in.
pub const FILLS_VIEW: LogView = LogView {
    table: FILLS,
    of: &[Tank::CATEGORY],
    writes: &[Write::Put, Write::Update],
    changes: fills,
};

#[derive(Debug, JsonSchema, Serialize)]
#[serde(rename_all = "camelCase")]
struct Fill {
    tank_id: String,
    entry: String,
    amount: i64,
}

fn fills(commit: &Commit) -> Result<Changes, ChangesError> {
    let mut changes = Changes::new(FILLS);
    for (place, event) in commit.events.iter().enumerate() {
        fill(commit, place, &decode::<Tank>(event)?, &mut changes)?;
    }
    Ok(changes)
}

/// Adds the changes of one event of a commit to those of the fills.
///
/// # Errors
/// When the row cannot be written as an item.
pub fn fill(
    commit: &Commit,
    place: usize,
    event: &Event,
    changes: &mut Changes,
) -> Result<(), ChangesError> {
    let Some((amount, _)) = moved(event) else { return Ok(()) };
    let id = commit.stream.id();
    let entry = format!("{:020}#{place:04}", commit.version);
    changes.put(&Fill { tank_id: id.to_owned(), entry, amount })?;
    if amount > 0 {
        changes.add(id, "sum", "filled", amount);
    }
    Ok(())
}

/// The table of the stock.
pub const STOCK: LogTable = LogTable { variable: "STOCK_TABLE", partition: "book", sort: "entry" };

/// The partition with all rows of the stock.
pub const BOOK: &str = "stock";

/// The view of the stock: a row for each amount that moved, in the order of `$all`, with the litres
/// of all tanks after it.
pub const STOCK_VIEW: OrderedView<Stock, ()> =
    OrderedView { table: STOCK, of: &[Tank::CATEGORY], writes: &[Write::Put], changes: stock };

/// The litres after a row of the stock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Stock {
    /// The number of the last row; 0 before the first.
    pub number: u64,
    /// The litres in all tanks. A thousand full tanks hold more litres than 63 bits can count, so
    /// the sum saturates.
    pub in_tanks: i64,
    /// The litres that a haul drew and that have not arrived yet, neither in the second tank nor
    /// back in the first.
    pub under_way: i64,
}

/// A row of the stock.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StockRow {
    /// Partition key: [`BOOK`].
    pub book: String,
    /// Sort key: the number, so that text order is the order of the rows.
    pub entry: String,
    /// The tank.
    pub tank_id: String,
    /// The version of the tank after the commit.
    pub version: u64,
    /// The litres that came into the tank; less than 0 if they went out.
    pub amount: i64,
    /// The level of the tank after this change, in litres.
    pub level: i64,
    /// The litres of all tanks and hauls after this change.
    #[serde(flatten)]
    pub stock: Stock,
}

fn stock(
    stock: &mut Stock,
    (): &mut (),
    commit: &Commit,
    changes: &mut Changes,
) -> Result<(), ChangesError> {
    // A change of a tank for a haul reacts to a commit of the haul, and names that commit as its
    // cause.
    let cause = commit.meta.causation_id.as_deref().unwrap_or_default();
    let of_a_haul = cause.strip_prefix(Haul::CATEGORY).is_some_and(|rest| rest.starts_with('-'));
    for recorded in &commit.events {
        let Some((amount, level)) = moved(&decode::<Tank>(recorded)?) else { continue };
        stock.number += 1;
        stock.in_tanks = stock.in_tanks.saturating_add(amount);
        if of_a_haul {
            stock.under_way = stock.under_way.saturating_sub(amount);
        }
        changes.put(&StockRow {
            book: BOOK.to_owned(),
            entry: format!("{:020}", stock.number),
            tank_id: commit.stream.id().to_owned(),
            version: commit.version,
            amount,
            level,
            stock: *stock,
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use ledgerline::shapes::check_rows;

    use super::*;

    #[test]
    fn rows_of_every_shape_that_was_written_are_read() {
        check_rows::<Level>(include_str!("../shapes/rows/levels.json"));
        check_rows::<Reading>(include_str!("../shapes/rows/readings.json"));
        check_rows::<StockRow>(include_str!("../shapes/rows/stock.json"));
    }
}
