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
use ledgerline_sam::template::{Client, Cors, Distribution};
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
        .layer(middleware::from_fn_with_state(Arc::new(distribution), add_headers))
}

/// Allows the pages of this origin, under both names of this machine, to call the API in place of
/// those of the distribution.
pub(crate) fn allow(cors: &mut Cors, distribution: &Distribution, own: &str) {
    let deployed = format!("https://{}", distribution.domain);
    let origins = &mut cors.allow_origins;
    if let Some(place) = origins.iter().position(|origin| *origin == deployed) {
        origins.splice(place..=place, [own.to_owned(), own.replace("127.0.0.1", "localhost")]);
    }
}

/// Adds the headers of the first behaviour whose pattern matches the path.
async fn add_headers(
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

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;
    use reqwest::redirect::Policy;

    use super::*;

    const PAGES: &str = "default-src 'none'; connect-src 'self' https://api.example";

    fn distribution() -> Distribution {
        let header = |name: &str, value: &str| vec![(name.to_owned(), value.to_owned())];
        Distribution {
            domain: "pages.cloudfront.net".to_owned(),
            headers: vec![
                ("assets/*".to_owned(), header("Cache-Control", "immutable")),
                ("*".to_owned(), header("Content-Security-Policy", PAGES)),
            ],
        }
    }

    /// Serves an app whose API has this address, and returns the address of the app.
    async fn served(folder: &Path, api: &str) -> String {
        let client = |id: &str, callback: &str| Client {
            id: id.to_owned(),
            callbacks: vec![callback.to_owned()],
            ..Client::default()
        };
        let clients = [
            client("Other", "https://other.example/"),
            client("App", "https://pages.cloudfront.net/"),
        ];
        let router = router(folder, &distribution(), &clients, api);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await });
        format!("http://{address}")
    }

    async fn get(url: String) -> reqwest::Response {
        let client = reqwest::Client::builder().redirect(Policy::none()).build().unwrap();
        client.get(url).send().await.unwrap()
    }

    fn built() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join(FILES).join("assets")).unwrap();
        for (file, text) in [("index.html", "<p>"), ("assets/a.js", "let a"), ("../secret", "x")] {
            std::fs::write(folder.path().join(FILES).join(file), text).unwrap();
        }
        folder
    }

    #[tokio::test]
    async fn the_files_have_the_headers_of_their_behaviour() {
        let folder = built();
        let url = served(folder.path(), "/").await;
        for (path, kind, header, value) in [
            ("/app/", "text/html", "content-security-policy", PAGES),
            ("/app/assets/a.js", "text/javascript", "cache-control", "immutable"),
            ("/app/config.json", "application/json", "content-security-policy", PAGES),
        ] {
            let answer = get(format!("{url}{path}")).await;
            assert_eq!(answer.status(), StatusCode::OK, "{path}");
            assert_eq!(answer.headers()["content-type"], kind, "{path}");
            assert_eq!(answer.headers()[header], value, "{path}");
        }
        // The headers of pages are not those of assets.
        let asset = get(format!("{url}/app/assets/a.js")).await;
        assert!(asset.headers().get("content-security-policy").is_none());
        assert_eq!(get(format!("{url}/app")).await.headers()["location"], APP);
        for missing in ["/app/b.js", "/app/..%2fsecret", "/app/%2e%2e/secret"] {
            let answer = get(format!("{url}{missing}")).await;
            assert_eq!(answer.status(), StatusCode::NOT_FOUND, "{missing}");
        }
    }

    #[test]
    fn the_origin_of_the_app_replaces_that_of_the_distribution() {
        let other = "https://other.example";
        let deployed = ["https://pages.cloudfront.net", other].map(ToOwned::to_owned);
        let mut cors = Cors { allow_origins: deployed.into(), ..Cors::default() };
        allow(&mut cors, &distribution(), "http://127.0.0.1:5173");
        assert_eq!(cors.allow_origins, ["http://127.0.0.1:5173", "http://localhost:5173", other]);
    }

    #[tokio::test]
    async fn a_page_of_another_origin_may_call_the_api_that_its_configuration_names() {
        let folder = built();
        let api = "http://127.0.0.1:3000";
        let url = served(folder.path(), api).await;
        let config = get(format!("{url}/app/config.json")).await;
        let policy = config.headers()["content-security-policy"].to_str().unwrap().to_owned();
        assert!(policy.contains(&format!("connect-src 'self' {api} https://api.example")));
        let config: serde_json::Value = config.json().await.unwrap();
        assert_eq!(config, json!({ "api": api, "signIn": api, "clientId": "App" }));
    }
}
