//! Rows that are written from states: each shows the newest state of its aggregate (rule 8).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use ledgerline::{
    StateTable, StreamId,
    changes::{Fields, Key},
    manifest::{OtherView, ViewStore},
    view_store::{Overwrite, RowStore, StateRowStore, StoredRow, ViewError, state_fields},
};
use ledgerline_lambda::rebuild::Publication;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::{
    bulk::Bulk,
    domain::{Domain, Failure},
};

/// The rows of a state view in OpenSearch: one index for each generation. Cheap to clone.
#[derive(Debug, Clone)]
pub struct SearchRows {
    domain: Domain,
    keys: StateTable,
    definition: &'static str,
    generation: u32,
    bulk: Arc<Bulk>,
    publication: Publication,
}

/// The longest time of a write. A function of states has ten seconds.
const TIME_LIMIT: Duration = Duration::from_secs(5);

/// Returns the name of the index with the rows of a generation, tombstones among them.
fn index_name(keys: &StateTable, generation: u32) -> String {
    let OtherView { name, .. } = OtherView::new(ViewStore::OpenSearch, keys.variable);
    format!("{name}-g{generation}")
}

/// Returns the alias of a generation's rows. Searches find no tombstones through it. Writes require
/// it, because a write to a missing index would create the index without its definition.
pub(crate) fn rows_alias(keys: &StateTable, generation: u32) -> String {
    format!("{}-rows", index_name(keys, generation))
}

/// The filter of aliases. A tombstone has no field but its version.
fn tombstone_filter(keys: &StateTable) -> Value {
    json!({ "exists": { "field": keys.key } })
}

impl SearchRows {
    /// Returns the rows of this view. `definition` is the JSON that creates an index, with its
    /// `mappings` and `settings`.
    #[must_use]
    pub fn new(domain: Domain, keys: StateTable, definition: &'static str) -> Self {
        Self {
            domain,
            keys,
            definition,
            generation: 0,
            bulk: Arc::default(),
            publication: Publication::default(),
        }
    }

    fn index(&self) -> String {
        index_name(&self.keys, self.generation)
    }

    /// Writes a row, or a tombstone, with all requests that this takes, within a time limit.
    async fn overwrite(
        &self,
        id: &str,
        version: u64,
        fields: &Fields,
    ) -> Result<(Overwrite, f64), ViewError> {
        let write = self.overwrite_in_time(id, version, fields);
        timeout(TIME_LIMIT, write).await.unwrap_or_else(|_| {
            let why = format!("OpenSearch did not answer in {TIME_LIMIT:?}");
            Err(Failure::Unreachable(why).into())
        })
    }

    /// Writes a row, or a tombstone. OpenSearch compares the versions.
    async fn overwrite_in_time(
        &self,
        id: &str,
        version: u64,
        fields: &Fields,
    ) -> Result<(Overwrite, f64), ViewError> {
        let action = json!({ "index": {
            "_id": id, "version": version, "version_type": "external", "require_alias": true,
        } });
        let lines = format!("{action}\n{}\n", Value::Object(fields.clone()));
        let path = format!("/{}/_bulk", rows_alias(&self.keys, self.generation));
        let mut written = self.bulk.write(&self.domain, &path, lines.clone()).await;
        if written.as_ref().is_err_and(Failure::has_no_index) {
            self.prepare().await?;
            written = self.bulk.write(&self.domain, &path, lines).await;
        }
        match written {
            Ok(()) => Ok((Overwrite::Written, 0.0)),
            Err(Failure::Refused { status: 409, .. }) => {
                let shown = self.documents(&[id], false).await?;
                let version = shown.get(id).map_or(0, |(version, _)| *version);
                Ok((Overwrite::Shows(version), 0.0))
            }
            Err(failure) => Err(failure.into()),
        }
    }

    /// Reads the documents with these ids that exist, with their versions. These reads see all
    /// earlier writes, which searches see about a second later.
    async fn documents(
        &self,
        ids: &[&str],
        with_fields: bool,
    ) -> Result<BTreeMap<String, (u64, Option<Fields>)>, ViewError> {
        if ids.is_empty() {
            return Ok(BTreeMap::new());
        }
        let path = format!("/{}/_mget", self.index());
        let documents: Vec<_> =
            ids.iter().map(|id| json!({ "_id": id, "_source": with_fields })).collect();
        let request = json!({ "docs": documents }).to_string();
        let answer = self.domain.send("POST", path, request).await;
        let answer = match answer {
            Err(failure) if failure.has_no_index() => return Ok(BTreeMap::new()),
            answer => answer?,
        };
        let mut found = BTreeMap::new();
        for document in answer["docs"].as_array().into_iter().flatten() {
            if let Some(kind) = document["error"]["type"].as_str() {
                let failure = Failure::Refused { status: 404, kind: kind.to_owned() };
                if failure.has_no_index() {
                    continue;
                }
                return Err(failure.into());
            }
            if document["found"] == true {
                let version = document["_version"].as_u64();
                let version =
                    version.ok_or_else(|| ViewError::Row("a row has no version".into()))?;
                let fields = document["_source"].as_object().cloned();
                let id = document["_id"].as_str().unwrap_or_default().to_owned();
                found.insert(id, (version, fields));
            }
        }
        Ok(found)
    }

    /// Returns the JSON that creates the index, with the alias of its rows.
    fn definition(&self) -> Result<String, ViewError> {
        let definition = serde_json::from_str(self.definition);
        let mut definition: Value = definition.map_err(|error| {
            ViewError::Row(format!("the definition of `{}` is no JSON: {error}", self.index()))
        })?;
        // Filters and the order of pages need the id as one term.
        definition["mappings"]["properties"][self.keys.key] = json!({ "type": "keyword" });
        let filter = tombstone_filter(&self.keys);
        definition["aliases"] =
            json!({ rows_alias(&self.keys, self.generation): { "filter": filter } });
        Ok(definition.to_string())
    }
}

impl RowStore for SearchRows {
    fn at_generation(&self, generation: u32) -> Self {
        // The rows of two generations do not share a request.
        let bulk = match generation == self.generation {
            true => Arc::clone(&self.bulk),
            false => Arc::default(),
        };
        Self { generation, bulk, ..self.clone() }
    }

    async fn prepare(&self) -> Result<(), ViewError> {
        let created =
            self.domain.send("PUT", format!("/{}", self.index()), self.definition()?).await;
        match created {
            Err(Failure::Refused { kind, .. }) if kind == "resource_already_exists_exception" => {
                Ok(())
            }
            created => created.map(|_| ()).map_err(|failure| {
                let name = self.index();
                let why = format!("the definition of the index `{name}`: {failure}");
                let error = ViewError::from(failure);
                if error.is_outage() { error } else { ViewError::Row(why) }
            }),
        }
    }

    fn is_publish_due(&self) -> bool {
        self.publication.is_due(self.generation)
    }

    /// Makes the alias with the view's name show this generation, without tombstones.
    async fn publish(&self) -> Result<(), ViewError> {
        let OtherView { name, .. } = OtherView::new(ViewStore::OpenSearch, self.keys.variable);
        let filter = tombstone_filter(&self.keys);
        // One request is one change: people never see two generations.
        let actions = json!({ "actions": [
            { "remove": { "index": format!("{name}-g*"), "alias": name } },
            { "add": { "index": self.index(), "alias": name, "filter": filter } },
        ] });
        let published = self.domain.send("POST", "/_aliases".to_owned(), actions.to_string()).await;
        self.publication.remember(self.generation, published.is_ok());
        Ok(published.map(|_| ())?)
    }

    async fn positions(&self, streams: &[StreamId]) -> Result<Vec<u64>, ViewError> {
        let ids: Vec<_> = streams.iter().map(StreamId::id).collect();
        let found = self.documents(&ids, false).await?;
        Ok(ids.into_iter().map(|id| found.get(id).map_or(0, |(version, _)| *version)).collect())
    }

    async fn delete_generation(&self) -> Result<(), ViewError> {
        let path = format!("/{}", self.index());
        match self.domain.send("DELETE", path, String::new()).await {
            Err(failure) if failure.has_no_index() => Ok(()),
            deleted => Ok(deleted.map(|_| ())?),
        }
    }

    async fn stored_rows(
        &self,
        keys: &BTreeSet<Key>,
    ) -> Result<BTreeMap<Key, StoredRow>, ViewError> {
        let ids: Vec<_> = keys.iter().map(|(id, _)| id.as_str()).collect();
        let found = self.documents(&ids, true).await?;
        let row = |(id, (version, fields)): (String, (u64, Option<Fields>))| {
            let fields = fields.filter(|fields| fields.contains_key(self.keys.key));
            ((id, String::new()), StoredRow { version, fields })
        };
        Ok(found.into_iter().map(row).collect())
    }
}

impl StateRowStore for SearchRows {
    async fn put_newer(
        &self,
        row: &impl Serialize,
        version: u64,
    ) -> Result<(Overwrite, f64), ViewError> {
        let fields = self.stored_fields(row, version)?;
        let id = fields.get(self.keys.key).and_then(Value::as_str).unwrap_or_default();
        self.overwrite(id, version, &fields).await
    }

    /// OpenSearch forgets the version of a deleted document after a minute, so a tombstone is a
    /// document, and stays.
    ///
    /// Source: the documentation of OpenSearch, "Index settings", `index.gc_deletes`.
    async fn forget(&self, id: &str, version: u64, _: i64) -> Result<(Overwrite, f64), ViewError> {
        let tombstone = Fields::from_iter([("version".to_owned(), Value::from(version))]);
        self.overwrite(id, version, &tombstone).await
    }

    fn stored_fields(&self, row: &impl Serialize, version: u64) -> Result<Fields, ViewError> {
        state_fields(row, self.keys.key, version)
    }
}
