//! Tests of the sign-in pages, by requests as browsers and programs send them.

use std::collections::BTreeMap;

use reqwest::redirect::Policy;

use super::*;
use crate::door;

const VERIFIER: &str = "a-verifier-that-has-at-least-forty-three-characters";
const CALLBACK: &str = "http://localhost:3000/callback";

fn client(id: &str) -> Client {
    Client {
        id: id.into(),
        callbacks: vec![CALLBACK.into()],
        logouts: vec![CALLBACK.into()],
        scopes: vec!["openid".into(), "water/read".into(), "water/write".into()],
        flows: vec!["code".into()],
        access_seconds: 60,
    }
}

struct Pages {
    url: String,
    tokens: Arc<Tokens>,
    http: reqwest::Client,
}

/// Starts the pages of a client for users, and of one for a program.
async fn pages() -> Pages {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let tokens = Arc::new(Tokens::new(url.clone()).unwrap());
    let program = Client {
        flows: vec!["client_credentials".into()],
        scopes: vec!["water/events".into()],
        ..client("Program")
    };
    let router = router(Arc::clone(&tokens), vec![client("App"), program], None);
    door::serve(listener, router, door::Pages::Linked).unwrap();
    let http = reqwest::Client::builder().redirect(Policy::none()).build().unwrap();
    Pages { url, tokens, http }
}

type Fields = BTreeMap<&'static str, String>;

/// Returns the fields of a valid request to sign in, with some changed.
fn asked(changed: &[(&'static str, &str)]) -> Fields {
    let challenge = BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(VERIFIER));
    let fields = [
        ("response_type", "code"),
        ("client_id", "App"),
        ("redirect_uri", CALLBACK),
        ("scope", "openid water/read"),
        ("state", "s&<\"'>"),
        ("code_challenge", &challenge),
        ("code_challenge_method", "S256"),
    ];
    let fields = fields.iter().chain(changed);
    fields.map(|(name, value)| (*name, (*value).to_owned())).collect()
}

fn encoded(fields: &Fields) -> String {
    form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish()
}

impl Pages {
    async fn open(&self, fields: &Fields, cookie: &str) -> reqwest::Response {
        let url = format!("{}{AUTHORIZE}?{}", self.url, encoded(fields));
        self.http.get(url).header("cookie", cookie).send().await.unwrap()
    }

    async fn post(&self, path: &str, fields: &Fields, origin: Option<&str>) -> reqwest::Response {
        let request = self.http.post(format!("{}{path}", self.url));
        let request = request.header("content-type", "application/x-www-form-urlencoded");
        let request = match origin {
            Some(origin) => request.header("origin", origin),
            None => request,
        };
        request.body(encoded(fields)).send().await.unwrap()
    }

    /// Signs ada in, and returns the code.
    async fn code(&self, changed: &[(&'static str, &str)]) -> String {
        let mut fields = asked(changed);
        fields.insert("user", "ada".into());
        fields.insert("groups", "operators drivers".into());
        let response = self.post(AUTHORIZE, &fields, Some(&self.url)).await;
        let location = location(&response);
        let (_, query) = location.split_once('?').unwrap();
        form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == "code").unwrap().1.into()
    }

    async fn exchange(&self, changed: &[(&'static str, &str)]) -> (u16, Value) {
        let fields = [
            ("grant_type", "authorization_code"),
            ("client_id", "App"),
            ("redirect_uri", CALLBACK),
            ("code_verifier", VERIFIER),
        ];
        let fields = fields.iter().chain(changed);
        let fields = fields.map(|(name, value)| (*name, (*value).to_owned())).collect();
        let response = self.post("/oauth2/token", &fields, None).await;
        (response.status().as_u16(), response.json().await.unwrap())
    }

    fn claims(&self, token: &Value) -> serde_json::Map<String, Value> {
        self.tokens.claims(token.as_str().unwrap(), Timestamp::now()).unwrap()
    }
}

fn location(response: &reqwest::Response) -> String {
    assert_eq!(response.status(), StatusCode::SEE_OTHER);
    response.headers()["location"].to_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_user_signs_in_and_the_client_gets_signed_tokens() {
    let pages = pages().await;
    let code = pages.code(&[("nonce", "n")]).await;
    let (status, tokens) = pages.exchange(&[("code", &code)]).await;
    assert_eq!((status, &tokens["expires_in"]), (200, &json!(60)), "{tokens}");
    let access = pages.claims(&tokens["access_token"]);
    assert_eq!(access["sub"], "ada");
    assert_eq!(
        (&access["client_id"], &access["scope"]),
        (&json!("App"), &json!("openid water/read"))
    );
    assert_eq!(access["cognito:groups"], json!(["operators", "drivers"]));
    let identity = pages.claims(&tokens["id_token"]);
    assert_eq!((&identity["aud"], &identity["nonce"]), (&json!("App"), &json!("n")));
    let refresh = tokens["refresh_token"].as_str().unwrap();
    // The API takes a text of three parts for a token, and not for the name of a user.
    assert_eq!((refresh.split('.').count(), code.split('.').count()), (3, 3));
    let again = [("grant_type", "refresh_token"), ("refresh_token", refresh)];
    let (status, tokens) = pages.exchange(&again).await;
    assert_eq!(status, 200);
    assert_eq!(pages.claims(&tokens["access_token"])["sub"], "ada");
    let other = [again[0], again[1], ("client_id", "Program")];
    assert_eq!(pages.exchange(&other).await.1["error"], "invalid_grant");
    // Only the client itself revokes the token.
    for (client, expected) in [("Program", 200), ("App", 400)] {
        let fields = [("token", refresh.to_owned()), ("client_id", client.to_owned())];
        pages.post("/oauth2/revoke", &fields.into(), None).await;
        assert_eq!(pages.exchange(&again).await.0, expected, "{client}");
    }
}

#[tokio::test]
async fn a_code_is_valid_once_for_its_client_its_address_and_its_verifier() {
    let pages = pages().await;
    for wrong in [
        ("code_verifier", "another-verifier-that-has-forty-three-characters"),
        ("redirect_uri", "http://localhost:3000/app/"),
        ("client_id", "Program"),
        ("code", "x"),
    ] {
        let code = pages.code(&[]).await;
        let (status, refused) = pages.exchange(&[("code", &code), wrong]).await;
        assert_eq!((status, &refused["error"]), (400, &json!("invalid_grant")), "{wrong:?}");
        if wrong.0 != "code" {
            // The wrong attempt used the code up.
            assert_eq!(pages.exchange(&[("code", &code)]).await.0, 400, "{wrong:?}");
        }
    }
    let code = pages.code(&[]).await;
    assert_eq!(pages.exchange(&[("code", &code)]).await.0, 200);
    assert_eq!(pages.exchange(&[("code", &code)]).await.0, 400, "twice");
}

#[tokio::test]
async fn names_at_sign_in_follow_the_rule_of_texts() {
    let pages = pages().await;
    let (long, wide) = ("a".repeat(129), "ö".repeat(65));
    for (user, groups, field) in [
        ("", "", "Name"),
        ("\u{200b}", "", "Name"),
        ("\u{feff}", "", "Name"),
        ("ada\u{200b}", "", "Name"),
        ("ada\u{202e}", "", "Name"),
        ("a\u{ad}da", "", "Name"),
        ("a\rda", "", "Name"),
        ("ada\u{0}", "", "Name"),
        (&long, "", "Name"),
        (&wide, "", "Name"),
        ("ada", "operators\u{200b}", "Groups"),
        ("ada", "drivers \u{feff}operators", "Groups"),
    ] {
        let mut fields = asked(&[]);
        fields.extend([("user", user.to_owned()), ("groups", groups.to_owned())]);
        let refused = pages.post(AUTHORIZE, &fields, Some(&pages.url)).await;
        assert_eq!(refused.status(), StatusCode::BAD_REQUEST, "{user:?} in {groups:?}");
        assert!(refused.headers().get("set-cookie").is_none());
        let why = refused.text().await.unwrap();
        assert!(why.starts_with(&format!("{field}: expected 1 to 128 bytes")), "{why}");
    }
    for user in [" ada ", "José", "أحمد", &"ö".repeat(64)] {
        let mut fields = asked(&[]);
        fields.insert("user", user.to_owned());
        let signed_in = pages.post(AUTHORIZE, &fields, Some(&pages.url)).await;
        assert!(location(&signed_in).contains("code="), "{user}");
    }
}

#[tokio::test]
async fn a_verifier_has_43_to_128_unreserved_characters() {
    let pages = pages().await;
    let texts = ["a".repeat(43), "-._~".repeat(32), "a".repeat(42), "a".repeat(129)];
    let others = [String::new(), "é".repeat(43), "a ".repeat(30), "a+".repeat(30)];
    for (place, verifier) in texts.iter().chain(&others).enumerate() {
        let challenge = BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(verifier));
        let code = pages.code(&[("code_challenge", &challenge)]).await;
        let answer = pages.exchange(&[("code", &code), ("code_verifier", verifier)]).await;
        match place {
            0 | 1 => assert_eq!(answer.0, 200, "{verifier}: {answer:?}"),
            _ => assert_eq!(answer.1["error"], "invalid_request", "{verifier}"),
        }
    }
}

#[tokio::test]
async fn the_configuration_names_every_endpoint() {
    let pages = pages().await;
    let get = async |path: &str, token: &str| {
        let request = pages.http.get(format!("{}{path}", pages.url));
        request.header("authorization", format!("Bearer {token}")).send().await.unwrap()
    };
    let configuration: Value = get(CONFIGURATION, "").await.json().await.unwrap();
    for field in ["revocation_endpoint", "userinfo_endpoint", "end_session_endpoint", "jwks_uri"] {
        let path = configuration[field].as_str().unwrap().strip_prefix(&pages.url).unwrap();
        assert_ne!(get(path, "").await.status(), StatusCode::NOT_FOUND, "{field}");
    }
    for field in ["grant_types_supported", "token_endpoint_auth_methods_supported"] {
        assert!(!configuration[field].as_array().unwrap().is_empty(), "{field}");
    }
    for (scope, status) in [("openid water/read", 200), ("water/read", 401)] {
        let code = pages.code(&[("scope", scope)]).await;
        let tokens = pages.exchange(&[("code", &code)]).await.1;
        let answer = get(USER_INFO, tokens["access_token"].as_str().unwrap()).await;
        assert_eq!(answer.status(), status, "{scope}");
        if status == 200 {
            assert_eq!(answer.json::<Value>().await.unwrap()["sub"], "ada");
        }
    }
    assert_eq!(get(USER_INFO, "ada").await.status(), StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn a_browser_is_sent_only_to_addresses_of_the_client() {
    let pages = pages().await;
    for uri in [
        "https://evil.example.com/",
        "http://localhost:3000/callback/",
        "http://localhost:3000/callback?x",
        "http://127.0.0.1:3000@evil.example.com/app/",
        "http://127.0.0.1:3000/app/../x",
        "http://127.0.0.1.evil.example.com:1/app/",
        "//evil.example.com/app/",
        "javascript:alert(1)",
        "",
    ] {
        let fields = asked(&[("redirect_uri", uri)]);
        let shown = pages.open(&fields, "").await;
        assert_eq!(shown.status(), StatusCode::BAD_REQUEST, "{uri}");
        let posted = pages.post(AUTHORIZE, &fields, None).await;
        assert!(posted.status().is_client_error(), "{uri}");
        let logout = format!("{}/logout?client_id=App&logout_uri={uri}", pages.url);
        let logout = pages.http.get(logout).send().await.unwrap();
        assert_eq!(logout.status(), StatusCode::BAD_REQUEST, "{uri}");
    }
    for uri in [CALLBACK, "http://127.0.0.1:5173/app/", "http://localhost:3000/app/"] {
        assert_eq!(pages.open(&asked(&[("redirect_uri", uri)]), "").await.status(), StatusCode::OK);
    }
}

#[tokio::test]
async fn a_client_needs_pkce_and_gets_only_its_scopes() {
    let pages = pages().await;
    for (changed, error) in [
        (("code_challenge_method", "plain"), "invalid_request"),
        (("code_challenge", "short"), "invalid_request"),
        (("code_challenge", "+++++++++++++++++++++++++++++++++++++++++++"), "invalid_request"),
        (("prompt", "none"), "login_required"),
        (("scope", "openid water/operate"), "invalid_scope"),
        (("response_type", "token"), "unsupported_response_type"),
    ] {
        let location = location(&pages.open(&asked(&[changed]), "").await);
        assert!(
            location.starts_with(&format!("{CALLBACK}?error={error}&state=s%26")),
            "{location}"
        );
    }
    let mut without = asked(&[]);
    without.remove("code_challenge");
    without.remove("code_challenge_method");
    let location = location(&pages.open(&without, "").await);
    assert!(location.contains("error=invalid_request"), "{location}");
}

#[tokio::test]
async fn the_page_runs_no_script_and_a_form_of_another_origin_opens_no_session() {
    let pages = pages().await;
    let script = "\"><script>alert(1)</script>";
    let page = pages.open(&asked(&[("state", script), ("nonce", script)]), "").await;
    let policy = page.headers()["content-security-policy"].to_str().unwrap().to_owned();
    assert!(policy.contains("default-src 'none'") && policy.contains("frame-ancestors 'none'"));
    assert_eq!(page.headers()["referrer-policy"], "same-origin", "or browsers send no origin");
    let page = page.text().await.unwrap();
    assert!(!page.contains("<script>") && page.contains("&lt;script&gt;"), "{page}");
    let mut fields = asked(&[]);
    fields.insert("user", "mallory".into());
    let posted = pages.post(AUTHORIZE, &fields, Some("https://evil.example.com")).await;
    assert_eq!(posted.status(), StatusCode::FORBIDDEN);
    assert!(posted.headers().get("set-cookie").is_none());
}

#[tokio::test]
async fn a_session_signs_in_again_until_the_logout() {
    let pages = pages().await;
    let mut fields = asked(&[]);
    fields.insert("user", "ada".into());
    let signed_in = pages.post(AUTHORIZE, &fields, Some(&pages.url)).await;
    let cookie = signed_in.headers()["set-cookie"].to_str().unwrap().to_owned();
    assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Lax"), "{cookie}");
    let cookie = cookie.split(';').next().unwrap();
    for (prompt, shows_form) in [("", false), ("none", false), ("login", true)] {
        let opened = pages.open(&asked(&[("prompt", prompt)]), cookie).await;
        assert_eq!(opened.status() == StatusCode::OK, shows_form, "{prompt}");
        assert!(shows_form || location(&opened).contains("code="), "{prompt}");
    }
    let logout = format!("{}/logout?client_id=App&logout_uri={CALLBACK}", pages.url);
    let logout = pages.http.get(logout).header("cookie", cookie).send().await.unwrap();
    assert_eq!(location(&logout), CALLBACK);
    assert_eq!(pages.open(&asked(&[]), cookie).await.status(), StatusCode::OK, "the page again");
}

/// A browser has one set of cookies for all ports of a host.
#[tokio::test]
async fn a_browser_is_signed_in_at_two_stacks_at_once() {
    let stacks = [pages().await, pages().await];
    let mut cookies = BTreeMap::new();
    for stack in &stacks {
        let mut fields = asked(&[]);
        fields.insert("user", "ada".into());
        let signed_in = stack.post(AUTHORIZE, &fields, Some(&stack.url)).await;
        let cookie = signed_in.headers()["set-cookie"].to_str().unwrap();
        let (name, value) = cookie.split(';').next().unwrap().split_once('=').unwrap();
        cookies.insert(name.to_owned(), value.to_owned());
    }
    let cookies: Vec<_> = cookies.iter().map(|(name, value)| format!("{name}={value}")).collect();
    for stack in &stacks {
        let opened = stack.open(&asked(&[]), &cookies.join("; ")).await;
        assert!(location(&opened).contains("code="), "{cookies:?}");
    }
}

#[test]
fn only_the_newest_secrets_are_stored() {
    let mut secrets = Secrets::default();
    let first = secrets.add(0);
    let others: Vec<_> = (1..=MOST).map(|number| secrets.add(number)).collect();
    assert_eq!((secrets.get(&first), secrets.0.len()), (None, MOST));
    assert_eq!(secrets.get(others.last().unwrap()), Some(&MOST));
}

#[tokio::test]
async fn a_program_gets_a_token_of_its_own_and_users_do_not() {
    let pages = pages().await;
    let program = [("grant_type", "client_credentials"), ("client_id", "Program")];
    let (status, tokens) = pages.exchange(&program).await;
    assert_eq!(status, 200, "{tokens}");
    let claims = pages.claims(&tokens["access_token"]);
    assert_eq!((&claims["sub"], &claims["scope"]), (&json!("Program"), &json!("water/events")));
    // As `curl --user` sends the id of the client.
    let basic = BASE64_STANDARD.encode("Program:secret");
    let request = pages.http.post(format!("{}/oauth2/token", pages.url));
    let request = request.header("content-type", "application/x-www-form-urlencoded");
    let request = request.header("authorization", format!("Basic {basic}"));
    let response = request.body("grant_type=client_credentials").send().await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let app = [("grant_type", "client_credentials"), ("client_id", "App")];
    assert_eq!(pages.exchange(&app).await.1["error"], "unsupported_grant_type");
    let other = [program[0], program[1], ("scope", "water/write")];
    assert_eq!(pages.exchange(&other).await.1["error"], "invalid_scope");
    assert_eq!(pages.exchange(&[("client_id", "Unknown")]).await.1["error"], "invalid_client");
}
