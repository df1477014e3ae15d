//! The contract of the HTTP API, and a page to try requests: `/openapi.json` and `/openapi`.
//!
//! API Gateway has neither path. The local stack answers both before the routes of the template.

use std::path::PathBuf;

use axum::{
    Json, Router,
    extract::Request,
    http::{StatusCode, Uri},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::get,
};
use serde_json::{Value, json};
use swagger_ui_dist::{ApiDefinition, OpenApiSource, generate_routes};

/// The path of the page.
pub(crate) const PAGE: &str = "/openapi";
/// The path of the document.
const DOCUMENT: &str = "/openapi.json";
/// The document in the folder of the template, as `cargo xtask schemas` writes it.
const FILE: &str = "docs/schemas/openapi.json";

/// Returns the routes of the document and the page, for the template in this folder.
pub(crate) fn router(folder: PathBuf, title: String) -> Router {
    let document = get(|| async move { document(&folder.join(FILE)).await });
    let page = generate_routes(ApiDefinition {
        uri_prefix: PAGE.to_owned(),
        api_definition: OpenApiSource::Uri(DOCUMENT.to_owned()),
        title: Some(title),
    });
    page.layer(middleware::from_fn(drop_query)).route(DOCUMENT, document)
}

/// Returns the document. Each request reads the file, because an edit may change the file. The
/// document names this stack as its server, so that the page sends requests to the stack.
async fn document(path: &std::path::Path) -> Response {
    let text = tokio::fs::read_to_string(path).await.unwrap_or_default();
    let Ok(mut document) = serde_json::from_str::<Value>(&text) else {
        let message = format!("`{FILE}` is missing or not JSON: run `cargo xtask schemas`");
        return (StatusCode::NOT_FOUND, Json(json!({ "message": message }))).into_response();
    };
    document["servers"] = json!([{ "url": "/" }]);
    Json(document).into_response()
}

/// Removes the query of a request. The page repeats its own address in its HTML, and a query could
/// put a script there.
async fn drop_query(mut request: Request, next: Next) -> Response {
    *request.uri_mut() = request.uri().path().parse().unwrap_or(Uri::from_static(PAGE));
    next.run(request).await
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn get(folder: &std::path::Path, uri: &str) -> (StatusCode, String) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = router(folder.to_owned(), "water".to_owned());
        tokio::spawn(async move { axum::serve(listener, router).await });
        let response = reqwest::get(format!("http://{address}{uri}")).await.unwrap();
        (response.status(), response.text().await.unwrap())
    }

    #[tokio::test]
    async fn the_page_shows_the_document_and_repeats_no_script_of_its_address() {
        let folder = tempfile::tempdir().unwrap();
        let (status, page) = get(folder.path(), "/openapi?\"onerror=\"alert(1)").await;
        assert_eq!(status, StatusCode::OK);
        assert!(page.contains("url: '/openapi.json'") && !page.contains("alert"), "{page}");
        assert_eq!(get(folder.path(), "/openapi/swagger-ui-bundle.js").await.0, StatusCode::OK);
        let (status, missing) = get(folder.path(), "/openapi.json").await;
        assert_eq!(status, StatusCode::NOT_FOUND);
        assert!(missing.contains("cargo xtask schemas"), "{missing}");
        let path = folder.path().join(FILE);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, r#"{"openapi":"3.1.0","servers":[{"url":"http://127.0.0.1:3000"}]}"#)
            .unwrap();
        let (_, document) = get(folder.path(), "/openapi.json").await;
        assert_eq!(serde_json::from_str::<Value>(&document).unwrap()["servers"][0]["url"], "/");
    }
}
