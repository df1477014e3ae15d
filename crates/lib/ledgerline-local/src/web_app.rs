//! The web app: the files of its build, and its configuration, at `/app/`.
//!
//! CloudFront serves the app on AWS, with the headers that the template gives the distribution.
//! The local stack serves the same files with the same headers, so that a policy that breaks the
//! app breaks the app on the laptop too.

use std::{path::Path, sync::Arc};

use axum::{
    Json, Router,
    extract::{Request, State},
    http::{HeaderName, HeaderValue, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Redirect, Response},
    routing::{get, get_service},
};
use ledgerline_sam::template::{Client, Cors, Distribution};
use serde_json::json;
use tower_http::services::{ServeDir, ServeFile};

/// The path of the app.
pub(crate) const APP: &str = "/app/";
/// The built files, in the folder of the template.
pub(crate) const FILES: &str = "web/dist";
/// The time of an asset in the caches, which it gets at its upload (docs/web.md).
const KEPT: &str = "public, max-age=31536000, immutable";
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
    for header in distribution.headers.iter_mut().flat_map(|(_, headers)| headers) {
        if api != "/" {
            header.value = header.value.replace(CONNECT, &format!("{CONNECT} {api}"));
        }
    }
    let folder = folder.join(FILES);
    let files = Router::new()
        .route("/config.json", get(async move || Json(config)))
        .route("/", get_service(ServeFile::new(folder.join("index.html"))))
        .fallback_service(ServeDir::new(folder).append_index_html_on_directories(false));
    Router::new()
        .nest(APP, files)
        .route("/app", get(async || Redirect::temporary(APP)))
        .layer(middleware::from_fn_with_state(Arc::new(distribution), answer_as_distribution))
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

/// Answers as the distribution does, with the headers of the first behaviour whose pattern matches
/// the path.
async fn answer_as_distribution(
    State(distribution): State<Arc<Distribution>>,
    request: Request,
    next: Next,
) -> Response {
    let path = request.uri().path().strip_prefix(APP).unwrap_or_default().to_owned();
    // A bucket has no folders, and one path for each file.
    let is_folder = !path.is_empty() && path.split('/').any(str::is_empty);
    let mut response =
        if is_folder { StatusCode::NOT_FOUND.into_response() } else { next.run(request).await };
    let is_file = response.status().is_success() || response.status() == StatusCode::NOT_MODIFIED;
    if is_file && path.starts_with("assets/") {
        response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static(KEPT));
    }
    let mut behaviours = distribution.headers.iter();
    let found = behaviours.find(|(pattern, _)| match pattern.strip_suffix('*') {
        Some(prefix) => path.starts_with(prefix),
        None => path == *pattern,
    });
    for header in found.into_iter().flat_map(|(_, headers)| headers) {
        if let (Ok(name), Ok(value)) =
            (HeaderName::try_from(header.name.as_str()), HeaderValue::from_str(&header.value))
            && (header.is_override || !response.headers().contains_key(&name))
        {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

#[cfg(test)]
mod tests {
    use ledgerline_sam::template::PolicyHeader;
    use reqwest::redirect::Policy;

    use super::*;

    const PAGES: &str = "default-src 'none'; connect-src 'self' https://api.example";

    fn distribution() -> Distribution {
        let header = |name: &str, value: &str, is_override| PolicyHeader {
            name: name.to_owned(),
            value: value.to_owned(),
            is_override,
        };
        let pages =
            ["content-security-policy", "cache-control"].into_iter().zip([PAGES, "no-cache"]);
        let pages = pages.map(|(name, value)| header(name, value, true)).collect();
        let assets = vec![header("cache-control", "no-store", false)];
        Distribution {
            domain: "pages.cloudfront.net".to_owned(),
            headers: vec![("assets/*".to_owned(), assets), ("*".to_owned(), pages)],
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
        get_with(url, "accept", "*/*").await
    }

    async fn get_with(url: String, header: &str, value: &str) -> reqwest::Response {
        let client = reqwest::Client::builder().redirect(Policy::none()).build().unwrap();
        client.get(url).header(header, value).send().await.unwrap()
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
            ("/app/index.html", "text/html", "cache-control", "no-cache"),
            ("/app/assets/a.js", "text/javascript", "cache-control", KEPT),
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
    }

    #[tokio::test]
    async fn a_browser_keeps_assets_that_exist_and_no_others() {
        let folder = built();
        let url = served(folder.path(), "/").await;
        let asset = format!("{url}/app/assets/a.js");
        let modified = get(asset.clone()).await.headers()["last-modified"].clone();
        for (header, value, status, kept) in [
            ("accept", "*/*", StatusCode::OK, KEPT),
            ("range", "bytes=0-1", StatusCode::PARTIAL_CONTENT, KEPT),
            ("if-modified-since", modified.to_str().unwrap(), StatusCode::NOT_MODIFIED, KEPT),
            ("range", "bytes=99-", StatusCode::RANGE_NOT_SATISFIABLE, "no-store"),
        ] {
            let answer = get_with(asset.clone(), header, value).await;
            assert_eq!(answer.status(), status, "{header}: {value}");
            assert_eq!(answer.headers()["cache-control"], kept, "{header}: {value}");
        }
        for missing in ["b.js", "", "a.js/", "/a.js", "..%2f..%2fsecret"] {
            let answer =
                get_with(format!("{url}/app/assets/{missing}"), "range", "bytes=0-1").await;
            assert_eq!(answer.status(), StatusCode::NOT_FOUND, "{missing}");
            assert_eq!(answer.headers()["cache-control"], "no-store", "{missing}");
        }
    }

    #[tokio::test]
    async fn the_app_has_no_folders_and_one_path_for_each_file() {
        let folder = built();
        let url = served(folder.path(), "/").await;
        for missing in
            ["assets", "index.html/", "config.json/", "/index.html", "b.js", "..%2fsecret"]
        {
            let answer = get(format!("{url}/app/{missing}")).await;
            assert_eq!(answer.status(), StatusCode::NOT_FOUND, "{missing}");
            assert_eq!(answer.headers()["cache-control"], "no-cache", "{missing}");
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
