//! The door of every server of the stack: it refuses requests that a web page of another origin
//! made a browser send to this machine.
//!
//! Such a page knows the addresses of the stack, and needs no token for most of them. Two headers
//! give the page away, and no page can change them:
//!
//! * `Host` names the site that the browser believes to visit. A page can make its own name resolve
//!   to this machine (DNS rebinding), but cannot have one of this machine's names.
//! * `Origin` and `Sec-Fetch-Site` name the page. Programs send neither.
//!
//! Source: the Fetch standard, "`Origin` header", and W3C, "Fetch Metadata Request Headers".

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use anyhow::Result;
use axum::{
    Json, Router,
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, Method, StatusCode, header, uri::Authority},
    middleware::{self, Next},
    response::{IntoResponse, Response},
};
use ledgerline_sam::template::Cors;
use serde_json::json;
use tokio::net::TcpListener;

use crate::{cors, sign_in};

/// The names of this machine: its own, and Docker's for it, which the functions of `sam local` use.
const NAMES: [&str; 2] = ["localhost", "host.docker.internal"];

/// The reasons and remedies of refusals.
const REBOUND: &str = "it may be the name of a web page that resolves to this machine. Use \
    `127.0.0.1` or `localhost`, or the address that `--aws-address` names";
const NO_TOKEN: &str = "a web page of another origin sent the request without a token: send \
    `Authorization: Bearer TOKEN`";
const FOREIGN: &str = "a web page of another origin sent the request: only pages of the origins in \
    the parameter `AllowedOrigins` may call the API, and no page may call another port";

/// The web pages of other origins that a server answers.
#[derive(Debug)]
pub(crate) enum Pages {
    /// None: only programs use the server.
    None,
    /// Pages with a link to this server, which the browser opens as a whole page.
    Linked,
    /// Pages with a link, and pages of the origins that CORS allows.
    Allowed(Arc<Cors>),
}

/// The rules of one server.
#[derive(Debug)]
struct Door {
    /// The address to which the server is bound.
    address: IpAddr,
    pages: Pages,
}

/// Serves these routes behind the door, until the process ends. Every server of the stack starts
/// here.
///
/// # Errors
/// When the listener has no address.
pub(crate) fn serve(listener: TcpListener, router: Router, pages: Pages) -> Result<()> {
    let door = Arc::new(Door { address: listener.local_addr()?.ip(), pages });
    let guarded = router.layer(middleware::from_fn_with_state(door, pass));
    let service = guarded.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, service).await });
    Ok(())
}

async fn pass(State(door): State<Arc<Door>>, request: Request, next: Next) -> Response {
    let asked = request.headers().clone();
    if let Some(refusal) = door.refusal(&request) {
        return forbid_frames(&asked, refusal);
    }
    let is_public = is_public(&request);
    let Pages::Allowed(cors) = &door.pages else {
        return forbid_frames(&asked, next.run(request).await);
    };
    if let Some(answer) = cors::preflight(cors, request.method(), &asked) {
        return answer;
    }
    let mut response = next.run(request).await;
    if is_public {
        cors::add_headers(cors, &asked, response.headers_mut());
    }
    forbid_frames(&asked, response)
}

impl Door {
    /// Returns the answer that refuses a request; `None` for a request that the server answers.
    fn refusal(&self, request: &Request) -> Option<Response> {
        let headers = request.headers();
        let mut hosts: Vec<_> = texts(headers, "host").collect();
        if hosts.len() > 1 {
            return Some(problem(StatusCode::BAD_REQUEST, "the request has two `Host` headers"));
        }
        hosts.extend(request.uri().authority().map(Authority::as_str));
        if hosts.is_empty() {
            return Some(problem(StatusCode::BAD_REQUEST, "the request has no `Host` header"));
        }
        if !hosts.iter().all(|host| self.has_name(host)) {
            let detail = format!("`{}` is not a name of this server: {REBOUND}", hosts.join(", "));
            return Some(problem(StatusCode::MISDIRECTED_REQUEST, &detail));
        }
        if !is_foreign(headers, &hosts) {
            return None;
        }
        match &self.pages {
            Pages::Linked | Pages::Allowed(_) if is_link(request) => None,
            Pages::Allowed(cors) if cors::allowed(cors, headers).is_some() => {
                let is_preflight = cors::is_preflight(request.method(), headers);
                // The page has the rights of its token, and not those of the developer.
                let has_token = headers.contains_key(header::AUTHORIZATION);
                let is_answered = is_preflight || is_public(request) || has_token;
                (!is_answered).then(|| problem(StatusCode::UNAUTHORIZED, NO_TOKEN))
            }
            Pages::None | Pages::Linked | Pages::Allowed(_) => {
                Some(problem(StatusCode::FORBIDDEN, FOREIGN))
            }
        }
    }

    /// Whether a value of `Host` names this server. An address of another machine proves nothing
    /// about a page, but a server on all addresses does not know which of them are its own.
    fn has_name(&self, host: &str) -> bool {
        let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
        let name = host.rsplit_once(':').filter(|(_, port)| is_port(port));
        let name = name.map_or(host, |(name, _)| name);
        match name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
            Ok(ip) => ip.is_loopback() || ip == self.address || self.address.is_unspecified(),
            Err(_) => NAMES.iter().any(|known| known.eq_ignore_ascii_case(name)),
        }
    }
}

fn texts<'a>(headers: &'a HeaderMap, name: &'static str) -> impl Iterator<Item = &'a str> {
    headers.get_all(name).iter().map(|value| value.to_str().unwrap_or_default())
}

fn has(headers: &HeaderMap, name: &'static str, expected: &str) -> bool {
    headers.get(name).is_some_and(|value| value == expected)
}

/// Whether a page of another origin sent a request to this server. A browser sends `Origin` with
/// every request that can change data, and `Sec-Fetch-Site` with every request to a loopback
/// address.
fn is_foreign(headers: &HeaderMap, hosts: &[&str]) -> bool {
    let mut sites = texts(headers, "sec-fetch-site");
    let mut origins = texts(headers, "origin");
    sites.any(|site| site != "same-origin" && site != "none")
        || origins.any(|origin| hosts.iter().any(|host| origin != format!("http://{host}")))
}

/// Whether a browser opens a link as a whole page. Such a request changes no data but the session
/// of the sign-in pages, and the other page cannot read the answer.
fn is_link(request: &Request) -> bool {
    let headers = request.headers();
    *request.method() == Method::GET
        && has(headers, "sec-fetch-mode", "navigate")
        && has(headers, "sec-fetch-dest", "document")
}

/// Whether a request is for a part of the sign-in that needs no token.
fn is_public(request: &Request) -> bool {
    sign_in::PUBLIC.contains(&request.uri().path())
}

/// Forbids every page to show this answer in a frame, if a person may see the answer.
fn forbid_frames(asked: &HeaderMap, mut response: Response) -> Response {
    let kind = response.headers().get(header::CONTENT_TYPE);
    let is_page = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/html"));
    if is_page || has(asked, "sec-fetch-mode", "navigate") {
        let deny = HeaderValue::from_static("DENY");
        response.headers_mut().insert(header::X_FRAME_OPTIONS, deny);
    }
    response
}

/// Returns a refusal. SDKs of AWS show `message`.
fn problem(status: StatusCode, detail: &str) -> Response {
    let body = json!({
        "type": "about:blank", "title": status.canonical_reason(), "status": status.as_u16(),
        "detail": detail, "message": detail,
    });
    let kind = [(header::CONTENT_TYPE, "application/problem+json")];
    (status, kind, Json(body)).into_response()
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    const APP: &str = "https://app.example.com";

    fn allowed_pages() -> Pages {
        Pages::Allowed(Arc::new(Cors { allow_origins: vec![APP.to_owned()], ..Cors::default() }))
    }

    /// Returns the status of the refusal of a request, if the server at this address refuses it.
    fn status(
        address: &str,
        pages: Pages,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
    ) -> Option<u16> {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let door = Door { address: address.parse().unwrap(), pages };
        let request = request.body(Body::empty()).unwrap();
        door.refusal(&request).map(|answer| answer.status().as_u16())
    }

    const HOST: (&str, &str) = ("host", "127.0.0.1:3000");

    #[test]
    fn a_server_answers_only_under_its_own_names() {
        for (address, host, expected) in [
            ("127.0.0.1", "127.0.0.1:3000", None),
            ("127.0.0.1", "localhost:3000", None),
            ("127.0.0.1", "LOCALHOST", None),
            ("127.0.0.1", "[::1]:3000", None),
            ("127.0.0.1", "[::1]", None),
            ("127.0.0.1", "host.docker.internal:4566", None),
            ("172.17.0.1", "172.17.0.1:4566", None),
            ("127.0.0.1", "172.17.0.1:4566", Some(421)),
            ("0.0.0.0", "192.168.1.9:4566", None),
            ("0.0.0.0", "evil.example:4566", Some(421)),
            ("127.0.0.1", "evil.example:3000", Some(421)),
            ("127.0.0.1", "localhost.evil.example:3000", Some(421)),
            ("127.0.0.1", "127.0.0.1.evil.example", Some(421)),
            ("127.0.0.1", "127.0.0.1@evil.example", Some(421)),
            ("127.0.0.1", "evil.example:127.0.0.1", Some(421)),
            ("127.0.0.1", "", Some(421)),
        ] {
            let refused = status(address, allowed_pages(), Method::GET, "/", &[("host", host)]);
            assert_eq!(refused, expected, "{host} at {address}");
        }
        let other = ("host", "evil.example");
        for (path, hosts, expected) in [
            ("/", &[][..], 400),
            ("/", &[HOST, other], 400),
            ("/", &[HOST, HOST], 400),
            ("http://evil.example/", &[HOST], 421),
        ] {
            let refused = status("127.0.0.1", allowed_pages(), Method::GET, path, hosts);
            assert_eq!(refused, Some(expected), "{path} {hosts:?}");
        }
    }

    #[test]
    fn a_page_of_another_origin_is_refused_unless_cors_allows_it() {
        for (sent, expected) in [
            (&[][..], None),
            (&[("origin", "http://127.0.0.1:3000")], None),
            (&[("sec-fetch-site", "none")], None),
            (&[("sec-fetch-site", "same-origin"), ("origin", "http://127.0.0.1:3000")], None),
            (&[("sec-fetch-site", "same-site")], Some(403)),
            (&[("sec-fetch-site", "cross-site")], Some(403)),
            (&[("origin", "http://localhost:3000")], Some(403)),
            (&[("origin", "http://127.0.0.1:3001")], Some(403)),
            (&[("origin", "https://127.0.0.1:3000")], Some(403)),
            (&[("origin", "null")], Some(403)),
            (&[("origin", "https://evil.example"), ("authorization", "Bearer eve")], Some(403)),
        ] {
            let headers = [&[HOST], sent].concat();
            for method in [Method::GET, Method::POST, Method::DELETE, Method::OPTIONS] {
                for pages in [Pages::None, Pages::Linked, allowed_pages()] {
                    let refused = status("127.0.0.1", pages, method.clone(), "/", &headers);
                    assert_eq!(refused, expected, "{method} {sent:?}");
                }
            }
        }
    }

    #[test]
    fn a_page_that_cors_allows_has_the_rights_of_its_token() {
        let preflight = ("access-control-request-method", "POST");
        for ((method, path), sent, expected) in [
            ((Method::POST, "/accounts"), &[("authorization", "Bearer ada")][..], None),
            ((Method::POST, "/accounts"), &[], Some(401)),
            ((Method::OPTIONS, "/accounts"), &[preflight], None),
            ((Method::OPTIONS, "/accounts"), &[], Some(401)),
            ((Method::GET, "/accounts"), &[preflight], Some(401)),
            ((Method::POST, "/oauth2/token"), &[], None),
            ((Method::POST, "/oauth2/revoke"), &[], None),
            ((Method::POST, "/oauth2/authorize"), &[], Some(401)),
        ] {
            let origin = [HOST, ("origin", APP), ("sec-fetch-site", "cross-site")];
            let headers = [&origin, sent].concat();
            for (pages, expected) in [(allowed_pages(), expected), (Pages::Linked, Some(403))] {
                let refused = status("127.0.0.1", pages, method.clone(), path, &headers);
                assert_eq!(refused, expected, "{method} {path} {sent:?}");
            }
        }
    }

    #[test]
    fn a_link_opens_a_whole_page_of_a_server_that_has_pages() {
        for (method, kind, pages, expected) in [
            (Method::GET, "document", Pages::Linked, None),
            (Method::GET, "document", allowed_pages(), None),
            (Method::GET, "document", Pages::None, Some(403)),
            (Method::GET, "iframe", Pages::Linked, Some(403)),
            (Method::GET, "image", Pages::Linked, Some(403)),
            (Method::POST, "document", Pages::Linked, Some(403)),
        ] {
            let text = format!("{method} {kind} {pages:?}");
            let mode = if kind == "image" { "no-cors" } else { "navigate" };
            let sent = [
                HOST,
                ("sec-fetch-site", "cross-site"),
                ("sec-fetch-mode", mode),
                ("sec-fetch-dest", kind),
            ];
            assert_eq!(status("127.0.0.1", pages, method, "/", &sent), expected, "{text}");
        }
    }
}
