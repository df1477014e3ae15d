//! Reads of the rows of a log view, for queries.

use std::{cell::OnceCell, rc::Rc};

use futures::{FutureExt, future::LocalBoxFuture};
use ledgerline::{
    LogTable,
    changes::Key,
    manifest::{Action, Manifest, OtherView, VIEWS_TABLE, ViewStore},
    view_store::{InvalidCursor, ViewError},
};
use ledgerline_dynamodb::{Page, UnreadableRow, ViewTable, read_cursor, write_cursor};
use ledgerline_lambda::{Error, config, queries::QueryStore};
use serde::de::DeserializeOwned;
use tokio_postgres::{
    Row,
    types::{ToSql, Type},
};

use crate::{
    database::{Database, Statement},
    tables::rows_of,
};

/// Reads the rows of a log view for the routes of a query function. The routes name it with
/// [`Query::read_store`](ledgerline_lambda::queries::Query::read_store).
#[derive(Debug)]
pub struct LogReader {
    table: LogTable,
    sources: OnceCell<Sources>,
}

#[derive(Debug)]
struct Sources {
    database: Database,
    generations: ViewTable,
}

/// The rows to read, in the order of their keys.
#[derive(Debug, Clone, Copy)]
pub struct Selection<'s> {
    /// The condition in SQL, on the columns `partition`, `sort` and `row`. `$1`, `$2` and so on
    /// stand for the values.
    pub condition: &'s str,
    /// The values of the condition. They are texts, and never a part of the statement.
    pub values: &'s [&'s str],
    /// Whether the rows are in descending order.
    pub newest_first: bool,
    /// The most rows in the page.
    pub limit: i32,
    /// The place where the previous page ended.
    pub cursor: Option<&'s str>,
}

impl LogReader {
    /// Returns a reader of the view with this table.
    #[must_use]
    pub fn new(table: LogTable) -> Rc<Self> {
        Rc::new(Self { table, sources: OnceCell::new() })
    }

    fn view(&self) -> OtherView {
        OtherView::new(ViewStore::Postgres, self.table.variable)
    }

    /// Reads a page of the rows in the active generation.
    ///
    /// # Errors
    /// When the database fails, or the cursor is not from a page of this selection. When no route
    /// names this view, which is a programming error.
    pub async fn page<T: DeserializeOwned>(
        &self,
        selection: &Selection<'_>,
    ) -> Result<Page<T>, ViewError> {
        let Some(Sources { database, generations }) = self.sources.get() else {
            let missing = "no route names this view; add `Query::read_store`";
            return Err(ViewError::Row(missing.into()));
        };
        generations.recent_generations().await?;
        let active = generations.at_active_generation().generation();
        let Selection { condition, values, newest_first, limit, cursor } = *selection;
        let list = selection.list();
        let after = cursor.map(|cursor| read_keys(cursor, &list)).transpose()?;
        let rows = rows_of(&self.view(), active);
        let place = values.len();
        let (comparison, order) = if newest_first { ("<", "DESC") } else { (">", "ASC") };
        let after_cursor = match &after {
            Some(_) => {
                format!(" AND (partition, sort) {comparison} (${}, ${})", place + 1, place + 2)
            }
            None => String::new(),
        };
        // One row more than the page tells whether there is another page.
        let sql = format!(
            "SELECT partition, sort, row::text FROM {rows} WHERE ({condition}){after_cursor} \
             ORDER BY partition {order}, sort {order} LIMIT {}",
            i64::from(limit) + 1
        );
        let mut all: Vec<(&(dyn ToSql + Sync), Type)> = Vec::new();
        all.extend(values.iter().map(|value| (value as _, Type::TEXT)));
        let keys = after.iter().flat_map(|(partition, sort)| [partition, sort]);
        all.extend(keys.map(|key| (key as _, Type::TEXT)));
        let found = database.read(Statement { sql: &sql, values: &all }).await?;
        let limit = usize::try_from(limit).unwrap_or_default();
        let last = found.get(limit).and_then(|_| found.get(limit - 1));
        let keys = |row: &Row| -> Key { (row.get(0), row.get(1)) };
        let cursor = last.map(|row| write_cursor(&keys(row), &list));
        let rows = found.iter().take(limit).map(|row| {
            let text: String = row.get(2);
            // The message of serde may quote a value.
            serde_json::from_str(&text).map_err(|_| UnreadableRow {
                key: row.get(1),
                reason: "a field is missing, or has another type or range".to_owned(),
            })
        });
        Ok(Page { rows: rows.collect(), cursor })
    }
}

impl QueryStore for LogReader {
    fn declare(&self, manifest: Manifest) -> Manifest {
        let keys = [self.view().key().into()].into();
        Database::declare(manifest.table(VIEWS_TABLE.grant_keys([Action::GetItem], &keys)))
    }

    fn open<'a>(&'a self, sdk: &'a aws_types::SdkConfig) -> LocalBoxFuture<'a, Result<(), Error>> {
        async move {
            let database = Database::from_env(sdk)?;
            let name = config::text(VIEWS_TABLE.variable)?;
            let client = aws_sdk_dynamodb::Client::new(sdk);
            let generations = ViewTable::from_view(client, name, &self.view());
            // Two routes may read one view: the first one has opened it.
            _ = self.sources.set(Sources { database, generations });
            Ok(())
        }
        .boxed_local()
    }
}

/// Reads the keys of the row after which a page begins.
fn read_keys(cursor: &str, list: &str) -> Result<Key, InvalidCursor> {
    let (partition, sort): Key = read_cursor(cursor, list)?;
    // PostgreSQL has no such character in a text.
    match [&partition, &sort].iter().any(|key| key.contains('\0')) {
        true => Err(InvalidCursor),
        false => Ok((partition, sort)),
    }
}

impl Selection<'_> {
    /// The text of the list, without the limit, which a reader may change.
    fn list(&self) -> String {
        let Self { condition, values, newest_first, limit: _, cursor: _ } = self;
        format!("{condition} {values:?} {newest_first}")
    }
}
