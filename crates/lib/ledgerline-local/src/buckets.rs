//! S3, as far as objects that are written once need it: PUT with `If-None-Match`, GET, HEAD, DELETE
//! and `ListObjectsV2`, with the bucket in the path.
//!
//! Source: the API reference of S3, and its user guide, "How to prevent object overwrites with
//! conditional writes".

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    io::ErrorKind,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use anyhow::{Context, Result, anyhow};
use axum::{
    Router,
    body::{Body, Bytes},
    extract::{DefaultBodyLimit, Request, State},
    http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header::IF_NONE_MATCH},
    routing::any,
};
use ledgerline::url_text::{decode_path, decode_query};
use tempfile::TempDir;
use tokio::net::TcpListener;

use crate::{
    door::{self, Pages},
    iam::{Iam, caller},
    outages::Failing,
};

/// The most bytes of a request.
const MAX_BYTES: usize = 16 * 1024 * 1024;
/// The most keys of one answer to `ListObjectsV2`.
const MAX_KEYS: usize = 1_000;

/// The buckets, and their objects in a folder.
#[derive(Debug, Clone)]
pub struct Buckets(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    names: BTreeSet<String>,
    folder: PathBuf,
    /// The folder of buckets that end with the process.
    _temporary: Option<TempDir>,
    iam: Option<Arc<Iam>>,
    /// The keys to which a request is writing.
    writes: Mutex<BTreeSet<PathBuf>>,
}

/// A request that is writing to a key. A drop of the value ends it, also when the client went away.
struct Writing<'a> {
    buckets: &'a Buckets,
    path: PathBuf,
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.buckets.writes().remove(&self.path);
    }
}

/// An answer that is an error: a status, a code and a message.
type Refusal = (StatusCode, &'static str, String);

impl Buckets {
    /// Opens the buckets with these names: in this folder, or until the process ends.
    ///
    /// # Errors
    /// When a folder cannot be created.
    pub fn open(
        names: impl IntoIterator<Item = String>,
        data: Option<&Path>,
        iam: Option<Arc<Iam>>,
    ) -> Result<Self> {
        let temporary = if data.is_none() { Some(tempfile::tempdir()?) } else { None };
        let folder =
            temporary.as_ref().map(TempDir::path).or(data).map(|data| data.join("buckets"));
        let folder = folder.context("the buckets have no folder")?;
        let names: BTreeSet<_> = names.into_iter().collect();
        for name in &names {
            let bucket = folder.join(name);
            std::fs::create_dir_all(&bucket)
                .with_context(|| format!("cannot create {}", bucket.display()))?;
        }
        let writes = Mutex::default();
        Ok(Self(Arc::new(Inner { names, folder, _temporary: temporary, iam, writes })))
    }

    /// Stores an object for Lambda, with the role of a function.
    ///
    /// # Errors
    /// When the role has no right to it, the bucket has an outage, or the file cannot be written.
    pub(crate) fn store(&self, caller: &str, bucket: &str, key: &str, content: &str) -> Result<()> {
        let arn = format!("arn:aws:s3:::{bucket}/{key}");
        let allowed = self.check_rights(Some(caller), None, "s3:PutObject", &arn);
        let folder = allowed.and_then(|()| self.bucket(bucket));
        let folder =
            folder.map_err(|(status, code, message)| anyhow!("{status} {code}: {message}"))?;
        let path = folder.join(file_name(key));
        std::fs::create_dir_all(path.parent().unwrap_or(&path))?;
        Ok(std::fs::write(path, content)?)
    }

    /// Serves the buckets on a port of their own. Returns the URL.
    ///
    /// # Errors
    /// When no port is free.
    pub async fn serve(&self) -> Result<String> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.context("no port is free")?;
        let address = listener.local_addr()?;
        let router = Router::new()
            .fallback(answer)
            .layer(DefaultBodyLimit::max(MAX_BYTES))
            .with_state(self.clone());
        door::serve(listener, router, Pages::None)?;
        Ok(format!("http://{address}"))
    }

    /// Returns the routes to the buckets.
    pub(crate) fn router(&self) -> Router {
        let routes = self.0.names.iter().fold(Router::new(), |routes, name| {
            routes
                .route(&format!("/{name}"), any(answer))
                .route(&format!("/{name}/"), any(answer))
                .route(&format!("/{name}/{{*key}}"), any(answer))
        });
        routes.layer(DefaultBodyLimit::max(MAX_BYTES)).with_state(self.clone())
    }

    fn bucket(&self, name: &str) -> Result<PathBuf, Refusal> {
        if self.0.names.contains(name) {
            return Ok(self.0.folder.join(name));
        }
        Err((StatusCode::NOT_FOUND, "NoSuchBucket", format!("there is no bucket `{name}`")))
    }

    fn check_request(
        &self,
        headers: &HeaderMap,
        action: &str,
        resource: &str,
    ) -> Result<(), Refusal> {
        let condition = headers.get(IF_NONE_MATCH).and_then(|value| value.to_str().ok());
        self.check_rights(caller(headers), condition, action, resource)
    }

    fn check_rights(
        &self,
        caller: Option<&str>,
        if_none_match: Option<&str>,
        action: &str,
        resource: &str,
    ) -> Result<(), Refusal> {
        let (Some(iam), Some(caller)) = (&self.0.iam, caller) else { return Ok(()) };
        let (bucket, _) = resource.split_once('/').unwrap_or((resource, ""));
        match iam.outage_of_bucket(caller, bucket) {
            Some(Failing::Failed) => {
                let message = "an outage on request".to_owned();
                return Err((StatusCode::INTERNAL_SERVER_ERROR, "InternalError", message));
            }
            Some(Failing::Throttled) => {
                let message = "please reduce your request rate".to_owned();
                return Err((StatusCode::SERVICE_UNAVAILABLE, "SlowDown", message));
            }
            None => {}
        }
        match iam.denial_of_object(caller, action, resource, if_none_match) {
            Some(message) => Err((StatusCode::FORBIDDEN, "AccessDenied", message)),
            None => Ok(()),
        }
    }

    fn writes(&self) -> MutexGuard<'_, BTreeSet<PathBuf>> {
        self.0.writes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn put(&self, path: PathBuf, request: Request) -> Result<Vec<u8>, Refusal> {
        let condition = request.headers().get(IF_NONE_MATCH).map(HeaderValue::as_bytes);
        if condition.is_some_and(|condition| condition != b"*") {
            let message = "If-None-Match of PUT is `*`".to_owned();
            return Err((StatusCode::NOT_IMPLEMENTED, "NotImplemented", message));
        }
        let must_be_new = condition.is_some();
        if !self.writes().insert(path.clone()) {
            let message = "another request is writing the key".to_owned();
            return Err((StatusCode::CONFLICT, "ConditionalRequestConflict", message));
        }
        let writing = Writing { buckets: self, path };
        write(&writing.path, request, must_be_new).await.map(|()| Vec::new())
    }

    fn list(&self, bucket: &str, query: &str) -> Result<Vec<u8>, Refusal> {
        let folder = self.bucket(bucket)?;
        let query = decode_query(query).unwrap_or_default();
        let field = |name: &str| {
            query.iter().find(|(named, _)| named == name).map(|(_, value)| value.clone())
        };
        let (prefix, after) = (field("prefix").unwrap_or_default(), field("continuation-token"));
        let mut keys = BTreeSet::new();
        collect(&folder, &folder, &mut keys).map_err(internal)?;
        let mut keys = keys.into_iter().filter(|key| key.starts_with(&prefix));
        let keys: Vec<_> = match &after {
            Some(after) => keys.by_ref().skip_while(|key| key <= after).collect(),
            None => keys.collect(),
        };
        let mut list = format!("<ListBucketResult><Name>{bucket}</Name>");
        for key in keys.iter().take(MAX_KEYS) {
            let size = std::fs::metadata(folder.join(file_name(key))).map_err(internal)?.len();
            let key = escape(key);
            // Writes into memory have no error.
            let _ = write!(list, "<Contents><Key>{key}</Key><Size>{size}</Size></Contents>");
        }
        let more = keys.get(MAX_KEYS - 1).filter(|_| keys.len() > MAX_KEYS);
        let token = more
            .map(|last| format!("<NextContinuationToken>{}</NextContinuationToken>", escape(last)));
        let _ = write!(
            list,
            "<KeyCount>{}</KeyCount><IsTruncated>{}</IsTruncated>{}</ListBucketResult>",
            keys.len().min(MAX_KEYS),
            more.is_some(),
            token.unwrap_or_default(),
        );
        Ok(list.into_bytes())
    }
}

/// Writes an object in one step: a reader finds the whole object, or none.
async fn write(path: &Path, request: Request, must_be_new: bool) -> Result<(), Refusal> {
    let content: Bytes = axum::body::to_bytes(request.into_body(), usize::MAX)
        .await
        .map_err(|error| (StatusCode::BAD_REQUEST, "IncompleteBody", error.to_string()))?;
    let folder = path.parent().unwrap_or(path);
    std::fs::create_dir_all(folder).map_err(internal)?;
    let file = tempfile::NamedTempFile::new_in(folder).map_err(internal)?;
    std::fs::write(file.path(), &content).map_err(internal)?;
    let stored = if must_be_new { file.persist_noclobber(path) } else { file.persist(path) };
    match stored {
        Ok(_) => Ok(()),
        Err(error) if error.error.kind() == ErrorKind::AlreadyExists => {
            let message = "at least one of the preconditions did not hold".to_owned();
            Err((StatusCode::PRECONDITION_FAILED, "PreconditionFailed", message))
        }
        Err(error) => Err(internal(error.error)),
    }
}

/// Adds the keys of the files in a folder.
fn collect(root: &Path, folder: &Path, keys: &mut BTreeSet<String>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(root, &path, keys)?;
        } else if let Some(name) = path.strip_prefix(root).ok().and_then(Path::to_str)
            && let Ok(key) = decode_path(name)
            && file_name(&key) == name
        {
            keys.insert(key);
        }
    }
    Ok(())
}

/// Returns the name of the file of a key. It has no capitals, because some file systems do not
/// distinguish them. It has no dots, and begins with no slash: the file would lie outside the folder.
fn file_name(key: &str) -> String {
    let mut name = String::new();
    for byte in key.bytes() {
        let is_separator = byte == b'/' && !name.is_empty() && !name.ends_with('/');
        if byte.is_ascii_lowercase()
            || byte.is_ascii_digit()
            || b"-_".contains(&byte)
            || is_separator
        {
            name.push(char::from(byte));
        } else {
            // Writes into memory have no error.
            let _ = write!(name, "%{byte:02x}");
        }
    }
    name
}

async fn answer(State(buckets): State<Buckets>, request: Request) -> Response<Body> {
    let is_deletion = request.method() == Method::DELETE;
    let path = request.uri().path().trim_start_matches('/');
    let (bucket, key) = path.split_once('/').unwrap_or((path, ""));
    let answered = match (bucket.to_owned(), decode_path(key)) {
        (bucket, Ok(key)) if key.is_empty() => list(&buckets, &bucket, &request),
        (bucket, Ok(key)) => object(&buckets, &bucket, &key, request).await,
        (_, Err(error)) => Err((StatusCode::BAD_REQUEST, "InvalidURI", error.to_string())),
    };
    respond(answered, if is_deletion { StatusCode::NO_CONTENT } else { StatusCode::OK })
}

fn list(buckets: &Buckets, bucket: &str, request: &Request) -> Result<Vec<u8>, Refusal> {
    let arn = format!("arn:aws:s3:::{bucket}");
    buckets.check_request(request.headers(), "s3:ListBucket", &arn)?;
    if request.method() != Method::GET {
        return Err(not_emulated(request.method()));
    }
    buckets.list(bucket, request.uri().query().unwrap_or_default())
}

async fn object(
    buckets: &Buckets,
    bucket: &str,
    key: &str,
    request: Request,
) -> Result<Vec<u8>, Refusal> {
    let arn = format!("arn:aws:s3:::{bucket}/{key}");
    let method = request.method().clone();
    let action = match method {
        Method::PUT => "s3:PutObject",
        Method::GET | Method::HEAD => "s3:GetObject",
        Method::DELETE => "s3:DeleteObject",
        _ => return Err(not_emulated(&method)),
    };
    buckets.check_request(request.headers(), action, &arn)?;
    let path = buckets.bucket(bucket)?.join(file_name(key));
    match method {
        Method::PUT => buckets.put(path, request).await,
        Method::DELETE => match std::fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(internal(error)),
            Ok(()) | Err(_) => Ok(Vec::new()),
        },
        _ => match std::fs::read(&path) {
            Ok(object) => Ok(object),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                // Only a caller that may list the keys learns that there is none.
                let bucket = format!("arn:aws:s3:::{bucket}");
                buckets.check_request(request.headers(), "s3:ListBucket", &bucket)?;
                let message = "the specified key does not exist".to_owned();
                Err((StatusCode::NOT_FOUND, "NoSuchKey", message))
            }
            Err(error) => Err(internal(error)),
        },
    }
}

fn not_emulated(method: &Method) -> Refusal {
    let message = format!(
        "`{method}` is not emulated: use PUT, GET, HEAD or DELETE of an object, or ListObjectsV2"
    );
    (StatusCode::NOT_IMPLEMENTED, "NotImplemented", message)
}

fn internal(error: std::io::Error) -> Refusal {
    (StatusCode::INTERNAL_SERVER_ERROR, "InternalError", error.to_string())
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn respond(answered: Result<Vec<u8>, Refusal>, status: StatusCode) -> Response<Body> {
    let (status, body) = match answered {
        Ok(body) => (status, body),
        Err((status, code, message)) => {
            let message = escape(&message);
            let error = format!("<Error><Code>{code}</Code><Message>{message}</Message></Error>");
            (status, error.into_bytes())
        }
    };
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests;
