//! Cross-origin requests: the preflight requests that API Gateway answers itself, and the headers
//! that it adds to the responses of functions.
//!
//! Source: the API Gateway developer guide, "Configure CORS for HTTP APIs in API Gateway". The
//! guide names only responses of integrations, so the gateway's own errors, such as a 401, get no
//! headers.

use axum::{
    body::Body,
    http::{
        HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode,
        header::{
            ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
            ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE,
            ACCESS_CONTROL_REQUEST_METHOD, ORIGIN,
        },
    },
};
use ledgerline_sam::template::Cors;

/// Returns the response to a preflight request; `None` for any other request. No authorizer and no
/// function sees a preflight request, because a browser sends it without the token.
pub(crate) fn preflight(
    cors: &Cors,
    method: &Method,
    request: &HeaderMap,
) -> Option<Response<Body>> {
    if !is_preflight(method, request) {
        return None;
    }
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    if let Some(origin) = allowed(cors, request) {
        let headers = response.headers_mut();
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        list(headers, ACCESS_CONTROL_ALLOW_METHODS, &cors.allow_methods);
        list(headers, ACCESS_CONTROL_ALLOW_HEADERS, &cors.allow_headers);
        if let Some(seconds) = cors.max_age {
            headers.insert(ACCESS_CONTROL_MAX_AGE, seconds.into());
        }
    }
    Some(response)
}

/// Whether a browser asks for a page whether the page may send a request.
pub(crate) fn is_preflight(method: &Method, request: &HeaderMap) -> bool {
    *method == Method::OPTIONS
        && request.contains_key(ORIGIN)
        && request.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

/// Adds the headers to the response of a function. API Gateway ignores the headers that the
/// function itself returns for this purpose.
pub(crate) fn add_headers(cors: &Cors, request: &HeaderMap, response: &mut HeaderMap) {
    for name in [ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS] {
        response.remove(name);
    }
    if let Some(origin) = allowed(cors, request) {
        response.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        list(response, ACCESS_CONTROL_EXPOSE_HEADERS, &cors.expose_headers);
    }
}

/// Returns the value for an origin that may call the API: `*`, or the origin of the request.
pub(crate) fn allowed(cors: &Cors, request: &HeaderMap) -> Option<HeaderValue> {
    let origin = request.get(ORIGIN)?;
    let text = origin.to_str().ok()?;
    if cors.allow_origins.iter().any(|allowed| allowed == "*") {
        return Some(HeaderValue::from_static("*"));
    }
    let matches = |allowed: &String| match allowed.strip_suffix("//*") {
        Some(scheme) => text.starts_with(&format!("{scheme}//")),
        None => allowed.eq_ignore_ascii_case(text),
    };
    cors.allow_origins.iter().any(matches).then(|| origin.clone())
}

fn list(headers: &mut HeaderMap, name: HeaderName, values: &[String]) {
    if let Ok(value) = HeaderValue::try_from(values.join(","))
        && !values.is_empty()
    {
        headers.insert(name, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cors(origins: &[&str]) -> Cors {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        Cors {
            allow_origins: texts(origins),
            allow_methods: texts(&["GET", "POST"]),
            allow_headers: texts(&["authorization"]),
            expose_headers: texts(&["etag"]),
            max_age: Some(600),
        }
    }

    fn request(headers: &[(HeaderName, &'static str)]) -> HeaderMap {
        let value = |value| HeaderValue::from_static(value);
        headers.iter().map(|(name, text)| (name.clone(), value(text))).collect()
    }

    const APP: (HeaderName, &str) = (ORIGIN, "https://app.example.com");
    const POST: (HeaderName, &str) = (ACCESS_CONTROL_REQUEST_METHOD, "POST");

    #[test]
    fn a_preflight_of_an_allowed_origin_gets_the_methods_and_headers() {
        let cors = cors(&["https://other.example.com", "https://app.example.com"]);
        let response = preflight(&cors, &Method::OPTIONS, &request(&[APP, POST])).unwrap();
        assert_eq!(response.status(), StatusCode::NO_CONTENT);
        let of = |name| response.headers().get(name).map(|value| value.to_str().unwrap());
        assert_eq!(of(ACCESS_CONTROL_ALLOW_ORIGIN), Some("https://app.example.com"));
        assert_eq!(of(ACCESS_CONTROL_ALLOW_METHODS), Some("GET,POST"));
        assert_eq!(of(ACCESS_CONTROL_ALLOW_HEADERS), Some("authorization"));
        assert_eq!(of(ACCESS_CONTROL_MAX_AGE), Some("600"));
    }

    #[test]
    fn a_preflight_of_a_foreign_origin_gets_no_headers() {
        let cors = cors(&["https://app.example.com"]);
        for origin in [
            "https://app.example.com.evil.com",
            "http://app.example.com",
            "https://evil.com",
            "null",
        ] {
            let request = request(&[(ORIGIN, origin), POST]);
            let response = preflight(&cors, &Method::OPTIONS, &request).unwrap();
            assert!(response.headers().is_empty(), "{origin}: {:?}", response.headers());
        }
    }

    #[test]
    fn any_other_request_is_no_preflight() {
        let cors = cors(&["*"]);
        for (method, headers) in [
            (Method::OPTIONS, &[APP][..]),
            (Method::OPTIONS, &[POST]),
            (Method::OPTIONS, &[]),
            (Method::POST, &[APP, POST]),
        ] {
            assert!(preflight(&cors, &method, &request(headers)).is_none(), "{method} {headers:?}");
        }
    }

    #[test]
    fn the_headers_of_the_api_replace_those_of_the_function() {
        let answered = |origins: &[&str], headers: &[_]| {
            let mut response = request(&[(ACCESS_CONTROL_ALLOW_ORIGIN, "https://function")]);
            add_headers(&cors(origins), &request(headers), &mut response);
            let text = |name| response.get(name).map(|value| value.to_str().unwrap().to_owned());
            (text(ACCESS_CONTROL_ALLOW_ORIGIN), text(ACCESS_CONTROL_EXPOSE_HEADERS))
        };
        let some = |text: &str| Some(text.to_owned());
        let app = some("https://app.example.com");
        assert_eq!(answered(&["https://app.example.com"], &[APP]), (app.clone(), some("etag")));
        assert_eq!(answered(&["https://*"], &[APP]), (app, some("etag")));
        assert_eq!(answered(&["*"], &[APP]), (some("*"), some("etag")));
        assert_eq!(answered(&["http://*"], &[APP]), (None, None));
        assert_eq!(answered(&["*"], &[]), (None, None));
    }
}
