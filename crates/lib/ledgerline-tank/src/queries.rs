//! The routes of queries, which answer from the views.

use jiff::Timestamp;
use ledgerline::{
    Aggregate, Id,
    manifest::{Action, Scope, Table},
    testing::tank::{Liquid, Tank, UNKNOWN},
};
use ledgerline_dynamodb::PageQuery;
use ledgerline_lambda::{
    http::{HttpRequest, Problem},
    queries::{
        Answer, KeyRange, PageEnd, Query, Views, VisibleTo, limit, page, problem, row, split_page,
        state,
    },
};
use schemars::JsonSchema;
use serde::Serialize;

use crate::views::{
    BOOK, LEVELS, Level, OF_INSTALLER, OF_LIQUID, READINGS, Reading, STOCK, Stock, StockRow, level,
};

/// A tank is visible to the caller who installed it.
const YOURS: VisibleTo<Level> = VisibleTo::Owner(|row| row.installed_by.as_deref());

/// The routes of tanks.
#[must_use]
pub fn tanks() -> Vec<Query> {
    let tables = [
        Table::grant(READINGS, [Action::GetItem, Action::Query]),
        Table::grant(LEVELS, [Action::GetItem]),
    ];
    let of_liquid = |request: &HttpRequest| {
        let liquid = request.path_value::<Liquid>("liquid")?;
        Ok(KeyRange::new(liquid.to_string()))
    };
    vec![
        row::<Tank, _, _>("GET /tanks/{id}", LEVELS, UNKNOWN, YOURS, tank),
        state::<Tank, _, _>("GET /tanks/{id}/state", level, UNKNOWN, YOURS, tank),
        page("GET /tanks", "tanks", LEVELS, OF_INSTALLER, KeyRange::from_caller, tank),
        page("GET /liquids/{liquid}/tanks", "tanks", LEVELS, OF_LIQUID, of_liquid, tank)
            .path_parameter::<Liquid>("liquid"),
        Query::new("GET /tanks/{id}/readings", tables, readings)
            .read_your_writes::<Tank>()
            .with_pages()
            .refusals(&[UNKNOWN]),
    ]
}

/// A tank.
#[derive(JsonSchema, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "Tank")]
struct ShownTank {
    tank_id: String,
    site: String,
    liquid: String,
    /// The level in litres.
    level: i64,
    version: u64,
}

fn tank(row: Level) -> ShownTank {
    let Level { tank_id, installed_by: _, site, liquid, level, version } = row;
    ShownTank { tank_id, site, liquid, level, version }
}

/// The readings of a tank, the newest first.
#[derive(JsonSchema, Serialize)]
struct Readings {
    readings: Vec<ShownReading>,
    #[serde(flatten)]
    end: PageEnd,
}

/// A change of a tank's level.
#[derive(JsonSchema, Serialize)]
#[schemars(rename = "Reading")]
struct ShownReading {
    version: u64,
    /// The litres that came in; less than 0 if they went out.
    amount: i64,
    /// The level after this change, in litres.
    level: i64,
    at: Timestamp,
}

/// The readings of a tank, the newest first. The row of the level names the owner. Without that
/// row, the tank is unknown.
async fn readings(views: &Views, request: &HttpRequest) -> Result<Answer<Readings>, Problem> {
    let id = request.path_value::<Id>("id")?;
    let stream = Tank::stream(id.get()).map_err(|error| Problem::field("id", error.to_string()))?;
    let limit = limit(request)?;
    let cursor = request.query("cursor")?;
    let version = views.visible_version(request, &stream, READINGS, LEVELS, YOURS).await?;
    if version == 0 {
        return Err(Problem::from(&UNKNOWN));
    }
    let query = PageQuery::new(id.get(), limit, cursor.as_deref());
    let query = PageQuery { newest_first: true, ..query };
    let page = views.log_rows(READINGS)?.page::<Reading>(&query).await.map_err(problem)?;
    let (readings, end) = split_page(page, |row| {
        let Reading { tank_id: _, entry: _, version, amount, level, at } = row;
        ShownReading { version, amount, level, at }
    });
    Ok(Answer::new(Readings { readings, end }).with_version(version))
}

/// The routes of the stock.
#[must_use]
pub fn stock() -> Vec<Query> {
    let table = Table::grant(STOCK, [Action::GetItem, Action::Query]);
    vec![Query::new("GET /stock", [table], rows_of_stock).with_pages().scope(Scope::Events)]
}

/// The rows of the stock, the oldest first, and the litres after the last one.
#[derive(JsonSchema, Serialize)]
struct RowsOfStock {
    rows: Vec<ShownStock>,
    stock: Stock,
    #[serde(flatten)]
    end: PageEnd,
}

/// A row of the stock.
#[derive(JsonSchema, Serialize)]
#[serde(rename_all = "camelCase")]
struct ShownStock {
    tank_id: String,
    version: u64,
    amount: i64,
    level: i64,
    stock: Stock,
}

/// Returns the rows of the stock, the oldest first, and the litres after the last one.
async fn rows_of_stock(
    views: &Views,
    request: &HttpRequest,
) -> Result<Answer<RowsOfStock>, Problem> {
    request.actor()?;
    let limit = limit(request)?;
    let cursor = request.query("cursor")?;
    let table = views.log_rows(STOCK)?;
    // The checkpoint is read first. A strongly consistent read of the rows follows, so the rows
    // have at least its number.
    let checkpoint = table.checkpoint().await.map_err(problem)?;
    let stock: Stock = match checkpoint.state.as_str() {
        "" => Stock::default(),
        state => serde_json::from_str(state).map_err(|_| {
            tracing::error!("the stock in the checkpoint cannot be read");
            Problem::internal()
        })?,
    };
    let page = PageQuery::new(BOOK, limit, cursor.as_deref());
    let page = table.page::<StockRow>(&page).await.map_err(problem)?;
    let (rows, end) = split_page(page, |row| {
        let StockRow { book: _, entry: _, tank_id, version, amount, level, stock } = row;
        ShownStock { tank_id, version, amount, level, stock }
    });
    Ok(Answer::new(RowsOfStock { rows, stock, end }).with_version(stock.number))
}
