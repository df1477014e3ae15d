//! A small server in place of OpenSearch. It has the requests that views need: it compares external
//! versions, answers for each row of a bulk request, and searches by words. It keeps everything in
//! memory, and checks no signature.
//!
//! Source: the documentation of OpenSearch, "Document APIs", "Alias APIs" and "Query DSL".

mod query;

use std::{
    collections::{BTreeMap, VecDeque},
    net::Ipv4Addr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use anyhow::Result;
use axum::{
    Json, Router,
    extract::{Path, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{post, put},
};
use serde_json::{Map, Value, json};
use tokio::{net::TcpListener, task::JoinHandle};

use self::query::{Invalid, matches};

/// The types of fields that the server knows.
const TYPES: [&str; 3] = ["keyword", "long", "text"];
const NO_INDEX: &str = "index_not_found_exception";

/// A server that runs until it is dropped.
#[derive(Debug)]
pub struct SearchServer {
    url: String,
    indexes: Shared,
    task: JoinHandle<()>,
}

type Shared = Arc<Mutex<Indexes>>;

/// A failure of the next request that writes rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SearchFault {
    /// The request gets this status, and nothing is written.
    Request(u16),
    /// The first row of the request gets this status and is not written.
    FirstRow(u16),
    /// The rows are written, and the answer is a status 502 of a proxy.
    LostAnswer,
}

#[derive(Debug, Default)]
struct Indexes {
    by_name: BTreeMap<String, Index>,
    faults: VecDeque<SearchFault>,
    bulk_requests: usize,
}

#[derive(Debug, Default)]
struct Index {
    fields: Map<String, Value>,
    documents: BTreeMap<String, Document>,
    /// The filters of its aliases.
    aliases: BTreeMap<String, Value>,
}

#[derive(Debug)]
struct Document {
    version: u64,
    source: Map<String, Value>,
}

impl SearchServer {
    /// Starts a server on a free port.
    ///
    /// # Errors
    /// When no port is free.
    pub async fn start() -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let url = format!("http://{}", listener.local_addr()?);
        let indexes = Shared::default();
        let router = Router::new()
            .route("/{index}", put(create).delete(delete))
            .route("/_aliases", post(change_aliases))
            .route("/{index}/_bulk", post(bulk))
            .route("/{index}/_mget", post(get_many))
            .route("/{index}/_search", post(search))
            .with_state(Arc::clone(&indexes));
        let task = tokio::spawn(async move { _ = axum::serve(listener, router).await });
        Ok(Self { url, indexes, task })
    }

    /// Returns its URL.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Makes the next requests that write rows fail, one after the other.
    pub fn fail_next(&self, faults: impl IntoIterator<Item = SearchFault>) {
        lock(&self.indexes).faults.extend(faults);
    }

    /// Returns the number of requests that wrote rows.
    #[must_use]
    pub fn bulk_requests(&self) -> usize {
        lock(&self.indexes).bulk_requests
    }

    /// Deletes all indexes, as an administrator might.
    pub fn delete_all(&self) {
        lock(&self.indexes).by_name.clear();
    }

    /// Returns the documents that people find through an alias.
    ///
    /// # Errors
    /// When there is no such alias.
    pub fn documents(&self, alias: &str) -> Result<Vec<Value>> {
        let indexes = lock(&self.indexes);
        let (index, filter) = indexes.find(alias).ok_or_else(|| anyhow::anyhow!("no `{alias}`"))?;
        let shown = index.documents.values().filter(|document| {
            filter.is_none_or(|filter| matches(filter, &document.source).is_ok_and(|it| it > 0.0))
        });
        Ok(shown.map(|document| Value::Object(document.source.clone())).collect())
    }
}

impl Drop for SearchServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn lock(indexes: &Shared) -> MutexGuard<'_, Indexes> {
    indexes.lock().unwrap_or_else(PoisonError::into_inner)
}

fn refuse(status: StatusCode, kind: &str) -> Response {
    let status_number = status.as_u16();
    (status, Json(json!({ "error": { "type": kind }, "status": status_number }))).into_response()
}

impl Indexes {
    /// Returns the index of this name, or that of an alias with its filter.
    fn find(&self, name: &str) -> Option<(&Index, Option<&Value>)> {
        if let Some(index) = self.by_name.get(name) {
            return Some((index, None));
        }
        self.by_name.values().find_map(|index| Some((index, Some(index.aliases.get(name)?))))
    }
}

async fn create(
    State(indexes): State<Shared>,
    Path(name): Path<String>,
    Json(definition): Json<Value>,
) -> Response {
    let mut indexes = lock(&indexes);
    if indexes.find(&name).is_some() {
        return refuse(StatusCode::BAD_REQUEST, "resource_already_exists_exception");
    }
    let map = |value: &Value| value.as_object().cloned().unwrap_or_default();
    let fields = map(&definition["mappings"]["properties"]);
    if !fields.values().all(|field| field["type"].as_str().is_some_and(|it| TYPES.contains(&it))) {
        return refuse(StatusCode::BAD_REQUEST, "mapper_parsing_exception");
    }
    let aliases = map(&definition["aliases"]).into_iter();
    let index = Index {
        fields,
        documents: BTreeMap::new(),
        aliases: aliases.map(|(name, mut alias)| (name, alias["filter"].take())).collect(),
    };
    indexes.by_name.insert(name, index);
    Json(json!({ "acknowledged": true })).into_response()
}

async fn delete(State(indexes): State<Shared>, Path(name): Path<String>) -> Response {
    match lock(&indexes).by_name.remove(&name) {
        Some(_) => Json(json!({ "acknowledged": true })).into_response(),
        None => refuse(StatusCode::NOT_FOUND, NO_INDEX),
    }
}

async fn change_aliases(State(indexes): State<Shared>, Json(change): Json<Value>) -> Response {
    let mut indexes = lock(&indexes);
    let text = |action: &Value, name: &str| action[name].as_str().unwrap_or_default().to_owned();
    for action in change["actions"].as_array().into_iter().flatten() {
        if let Some(remove) = action.get("remove") {
            let pattern = text(remove, "index");
            let alias = text(remove, "alias");
            let prefix = pattern.trim_end_matches('*');
            let matching = indexes.by_name.iter_mut().filter(|(name, _)| name.starts_with(prefix));
            matching.for_each(|(_, index)| _ = index.aliases.remove(&alias));
        }
        if let Some(add) = action.get("add") {
            let Some(index) = indexes.by_name.get_mut(&text(add, "index")) else {
                return refuse(StatusCode::NOT_FOUND, NO_INDEX);
            };
            index.aliases.insert(text(add, "alias"), add["filter"].clone());
        }
    }
    Json(json!({ "acknowledged": true })).into_response()
}

async fn bulk(State(indexes): State<Shared>, Path(alias): Path<String>, body: String) -> Response {
    let mut indexes = lock(&indexes);
    indexes.bulk_requests += 1;
    let fault = indexes.faults.pop_front();
    if let Some(SearchFault::Request(status)) = fault {
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        return refuse(status, "es_rejected_execution_exception");
    }
    let lines: Vec<Value> =
        body.lines().map(|line| serde_json::from_str(line).unwrap_or_default()).collect();
    let requires_alias = lines.first().is_some_and(|line| line["index"]["require_alias"] == true);
    let indexes = &mut indexes.by_name;
    if !requires_alias && !indexes.contains_key(&alias) {
        indexes.insert(alias.clone(), Index::default());
    }
    let mut index = indexes.iter_mut().find_map(|(name, index)| {
        let is_target = index.aliases.contains_key(&alias) || (!requires_alias && *name == alias);
        is_target.then_some(index)
    });
    let write = |(place, pair): (usize, &[Value])| {
        let action = &pair[0]["index"];
        let id = action["_id"].as_str().unwrap_or_default();
        let result = match (&fault, &mut index) {
            (Some(SearchFault::FirstRow(status)), _) if place == 0 => {
                Err((*status, "es_rejected_execution_exception"))
            }
            (_, None) => Err((404, NO_INDEX)),
            (_, Some(index)) => index.write(id, action, pair.get(1)),
        };
        let (status, error) = match result {
            Ok(status) => (status, Value::Null),
            Err((status, kind)) => (status, json!({ "type": kind })),
        };
        json!({ "index": { "_id": id, "status": status, "error": error } })
    };
    let items: Vec<_> = lines.chunks(2).enumerate().map(write).collect();
    if fault == Some(SearchFault::LostAnswer) {
        return StatusCode::BAD_GATEWAY.into_response();
    }
    let errors = items.iter().any(|item| !item["index"]["error"].is_null());
    Json(json!({ "errors": errors, "items": items })).into_response()
}

impl Index {
    /// Writes a document if its external version is higher than that of the stored one.
    fn write(
        &mut self,
        id: &str,
        action: &Value,
        source: Option<&Value>,
    ) -> Result<u16, (u16, &'static str)> {
        let (Some(version), Some(Value::Object(source))) = (action["version"].as_u64(), source)
        else {
            return Err((400, "illegal_argument_exception"));
        };
        let has_wrong_type = source.iter().any(|(name, value)| {
            let is_number = matches!(self.fields.get(name), Some(field) if field["type"] == "long");
            is_number && !value.is_i64() && !value.is_null()
        });
        if has_wrong_type || action["version_type"] != "external" {
            return Err((400, "mapper_parsing_exception"));
        }
        let known = self.documents.get(id).map(|document| document.version);
        if known.is_some_and(|known| known >= version) {
            return Err((409, "version_conflict_engine_exception"));
        }
        self.documents.insert(id.to_owned(), Document { version, source: source.clone() });
        Ok(if known.is_some() { 200 } else { 201 })
    }
}

async fn get_many(
    State(indexes): State<Shared>,
    Path(name): Path<String>,
    Json(request): Json<Value>,
) -> Response {
    let indexes = lock(&indexes);
    let index = indexes.find(&name).map(|(index, _)| index);
    let document = |wanted: &Value| {
        let id = &wanted["_id"];
        let Some(index) = index else { return json!({ "_id": id, "error": { "type": NO_INDEX } }) };
        match id.as_str().and_then(|id| index.documents.get(id)) {
            Some(Document { version, source }) => {
                let source = (wanted["_source"] == true).then_some(source);
                json!({ "_id": id, "found": true, "_version": version, "_source": source })
            }
            None => json!({ "_id": id, "found": false }),
        }
    };
    let documents = request["docs"].as_array().into_iter().flatten().map(document);
    let documents: Vec<_> = documents.collect();
    Json(json!({ "docs": documents })).into_response()
}

async fn search(
    State(indexes): State<Shared>,
    Path(name): Path<String>,
    Json(request): Json<Value>,
) -> Response {
    let indexes = lock(&indexes);
    let Some((index, filter)) = indexes.find(&name) else {
        return refuse(StatusCode::NOT_FOUND, NO_INDEX);
    };
    match index.search(filter, &request) {
        Ok(hits) => {
            let shards = json!({ "failed": 0 });
            Json(json!({ "timed_out": false, "_shards": shards, "hits": { "hits": hits } }))
                .into_response()
        }
        Err(Invalid) => refuse(StatusCode::BAD_REQUEST, "parsing_exception"),
    }
}

impl Index {
    /// Returns the hits in the order of their scores, and of the second field of `sort`.
    fn search(&self, filter: Option<&Value>, request: &Value) -> Result<Vec<Value>, Invalid> {
        let second = request["sort"][1].as_object().and_then(|it| it.keys().next());
        let field = second.ok_or(Invalid)?;
        let mut hits = Vec::new();
        for (id, Document { version: _, source }) in &self.documents {
            let is_shown = match filter {
                Some(filter) => matches(filter, source)? > 0.0,
                None => true,
            };
            let score = matches(&request["query"], source)?;
            if is_shown && score > 0.0 {
                let place = json!([score, source.get(field)]);
                hits.push(json!({ "_id": id, "_source": source, "sort": place }));
            }
        }
        let place = |sort: &Value| {
            let score = sort[0].as_f64().unwrap_or_default();
            (-score, sort[1].as_str().unwrap_or_default().to_owned())
        };
        let order = |one: &Value, other: &Value| {
            let one = place(one);
            let other = place(other);
            one.0.total_cmp(&other.0).then(one.1.cmp(&other.1))
        };
        hits.sort_by(|one, other| order(&one["sort"], &other["sort"]));
        if request["search_after"].is_array() {
            hits.retain(|hit| order(&hit["sort"], &request["search_after"]).is_gt());
        }
        let size = request["size"].as_u64().and_then(|size| size.try_into().ok());
        hits.truncate(size.unwrap_or(10));
        Ok(hits)
    }
}
