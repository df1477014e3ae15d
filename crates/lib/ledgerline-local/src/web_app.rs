//! The web app: the files of its build, and its configuration, at `/app/`.
//!
//! CloudFront serves the app on AWS, with the headers that the template gives the distribution.
//! The local stack serves the same files with the same headers, so that a policy that breaks the
//! app breaks the app on the laptop too.

use std::{path::Path, sync::Arc};

use axum::{
    Json, Router,
    extract::{Request, State},
    http::{HeaderName, HeaderValue},
    middleware::{self, Next},
    response::{Redirect, Response},
    routing::get,
};
use ledgerline_sam::template::{Client, Distribution};
use serde_json::json;
use tower_http::services::ServeDir;

/// The path of the app.
pub(crate) const APP: &str = "/app/";
/// The built files, in the folder of the template.
pub(crate) const FILES: &str = "web/dist";
/// The part of a content security policy that names the addresses that a page may call.
const CONNECT: &str = "connect-src 'self'";

/// Returns the routes of the app. `api` is the address of the API and of the sign-in pages, as the
/// app sees it: `/` on the port of the API.
pub(crate) fn router(
    folder: &Path,
    distribution: &Distribution,
    clients: &[Client],
    api: &str,
) -> Router {
    let home = format!("https://{}/", distribution.domain);
    let is_of_app = |client: &&Client| client.callbacks.contains(&home);
    let client = clients.iter().find(is_of_app).map(|client| client.id.clone());
    let config = json!({ "api": api, "signIn": api, "clientId": client });
    let mut distribution = distribution.clone();
    // The policy names the addresses of AWS, and not those of this machine.
    for (_, value) in distribution.headers.iter_mut().flat_map(|(_, headers)| headers) {
        if api != "/" {
            *value = value.replace(CONNECT, &format!("{CONNECT} {api}"));
        }
    }
    let files = Router::new()
        .route("/config.json", get(async move || Json(config)))
        .fallback_service(ServeDir::new(folder.join(FILES)));
    Router::new()
        .nest(APP, files)
        .route("/app", get(async || Redirect::temporary(APP)))
        .layer(middleware::from_fn_with_state(Arc::new(distribution), with_headers))
}

/// Adds the headers of the first behaviour whose pattern matches the path.
async fn with_headers(
    State(distribution): State<Arc<Distribution>>,
    request: Request,
    next: Next,
) -> Response {
    let path = request.uri().path().trim_start_matches(APP).to_owned();
    let mut response = next.run(request).await;
    let mut behaviours = distribution.headers.iter();
    let found = behaviours.find(|(pattern, _)| match pattern.strip_suffix('*') {
        Some(prefix) => path.starts_with(prefix),
        None => path == *pattern,
    });
    for (name, value) in found.into_iter().flat_map(|(_, headers)| headers) {
        if let (Ok(name), Ok(value)) =
            (HeaderName::try_from(name.as_str()), HeaderValue::from_str(value))
        {
            response.headers_mut().insert(name, value);
        }
    }
    response
}
