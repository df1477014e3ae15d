//! Searches in the rows of a state view, for queries.

use std::{cell::OnceCell, rc::Rc};

use futures::{FutureExt, future::LocalBoxFuture};
use ledgerline::{
    StateTable,
    manifest::{Action, Manifest, OtherView, VIEWS_TABLE, ViewStore},
    view_store::ViewError,
};
use ledgerline_dynamodb::{Page, UnreadableRow, ViewTable, read_cursor, write_cursor};
use ledgerline_lambda::{Error, config, queries::QueryStore};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::{
    domain::{Domain, ENDPOINT, Failure},
    search_rows::rows_alias,
};

/// Searches in the rows of a state view for the routes of a query function. The routes name it with
/// [`Query::read_store`](ledgerline_lambda::queries::Query::read_store).
#[derive(Debug)]
pub struct SearchReader {
    keys: StateTable,
    sources: OnceCell<Sources>,
}

#[derive(Debug)]
struct Sources {
    domain: Domain,
    generations: ViewTable,
}

impl SearchReader {
    /// Returns a reader of the view with this table.
    #[must_use]
    pub fn new(keys: StateTable) -> Rc<Self> {
        Rc::new(Self { keys, sources: OnceCell::new() })
    }

    fn view(&self) -> OtherView {
        OtherView::new(ViewStore::OpenSearch, self.keys.variable)
    }

    /// Returns a page of the rows that match a query, in OpenSearch's query language, the best
    /// matches first. `cursor` is the place where the previous page ended. A row is found about a
    /// second after its write. Scores differ between the copies of a shard, so the next page may
    /// skip or repeat a row.
    ///
    /// # Errors
    /// When the domain fails or refuses the query, or the cursor is not from a page of this query.
    /// When no route names this view, which is a programming error.
    pub async fn page<Row: DeserializeOwned>(
        &self,
        query: &Value,
        limit: i32,
        cursor: Option<&str>,
    ) -> Result<Page<Row>, ViewError> {
        let Some(Sources { domain, generations }) = self.sources.get() else {
            let missing = "no route names this view; add `Query::read_store`";
            return Err(ViewError::Row(missing.into()));
        };
        generations.recent_generations().await?;
        let active = generations.at_active_generation().generation();
        let limit = usize::try_from(limit).unwrap_or_default();
        let mut search = json!({
            "query": query, "track_total_hits": false,
            // One row more than the page tells whether there is another page.
            "size": limit + 1,
            "sort": [{ "_score": "desc" }, { self.keys.key: "asc" }],
        });
        let list = query.to_string();
        if let Some(cursor) = cursor {
            let (score, id): (f64, String) = read_cursor(cursor, &list)?;
            search["search_after"] = json!([score, id]);
        }
        let path = format!("/{}/_search", rows_alias(&self.keys, active));
        let mut answer = match domain.send("POST", path, search.to_string()).await {
            // The projector has not started yet.
            Err(failure) if failure.has_no_index() && active == 0 => {
                return Ok(Page { rows: Vec::new(), cursor: None });
            }
            answer => answer?,
        };
        // By default, OpenSearch answers without the rows of a failed shard.
        if answer["timed_out"] != false || answer["_shards"]["failed"] != 0 {
            let why = "OpenSearch could not search in all shards";
            return Err(Failure::Unreachable(why.to_owned()).into());
        }
        let hits = answer["hits"]["hits"].as_array_mut().into_iter().flatten();
        let hits: Vec<_> = hits.collect();
        let last = hits.get(limit).and_then(|_| hits.get(limit.saturating_sub(1)));
        let cursor = last.map(|hit| write_cursor(&hit["sort"], &list));
        let read = |hit: &mut Value| {
            // The message of serde may quote a value.
            serde_json::from_value(hit["_source"].take()).map_err(|_| UnreadableRow {
                key: hit["_id"].as_str().unwrap_or_default().to_owned(),
                reason: "a field is missing, or has another type or range".to_owned(),
            })
        };
        Ok(Page { rows: hits.into_iter().take(limit).map(read).collect(), cursor })
    }
}

impl QueryStore for SearchReader {
    fn declare(&self, manifest: Manifest) -> Manifest {
        let keys = [self.view().key().into()].into();
        let manifest = manifest.table(VIEWS_TABLE.grant_keys([Action::GetItem], &keys));
        manifest.call("es:ESHttpPost", ENDPOINT)
    }

    fn open<'a>(&'a self, sdk: &'a aws_types::SdkConfig) -> LocalBoxFuture<'a, Result<(), Error>> {
        async move {
            let domain = Domain::from_env(sdk)?;
            let name = config::text(VIEWS_TABLE.variable)?;
            let client = aws_sdk_dynamodb::Client::new(sdk);
            let generations = ViewTable::from_view(client, name, &self.view());
            // Two routes may read one view: the first one has opened it.
            _ = self.sources.set(Sources { domain, generations });
            Ok(())
        }
        .boxed_local()
    }
}
