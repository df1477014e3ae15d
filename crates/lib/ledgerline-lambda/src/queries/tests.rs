use aws_lambda_events::apigw::ApiGatewayV2httpRequest;
use ledgerline::{Index, Projection, StateTable};
use ledgerline_dynamodb::{Page, PageQuery, UnreadableRow};
use ledgerline_testing::http_event;
use schemars::SchemaGenerator;
use serde_json::{Value, json};

use super::{
    page_body::{page_body, page_schema},
    query_routes::page_that_fits,
    *,
};

/// A writer that does not know the index would not mark its keys with the generation. Rows of a
/// later generation would then appear in the pages of another one.
#[test]
#[should_panic(expected = "ROWS_TABLE does not name the index byOwner")]
fn a_page_route_with_an_index_that_the_table_does_not_name_does_not_start() {
    const ROWS: StateTable = StateTable { variable: "ROWS_TABLE", key: "id", indexes: &[] };
    const BY_OWNER: Index =
        Index { name: "byOwner", partition: "owner", sort: "name", projection: Projection::All };
    let _ =
        page::<Value, Value>("GET /rows", "rows", ROWS, BY_OWNER, KeyRange::from_caller, |row| row);
}

/// A row that a rebuild corrected shows the same version. A client with the wrong row must not
/// get `304`.
#[test]
fn only_a_client_with_exactly_this_representation_gets_304() {
    let ask_with = |header: &str, tags: &str, body: Value| {
        let fields = json!({ "headers": { header: tags } });
        let event: ApiGatewayV2httpRequest = http_event("GET /tanks/{id}", fields);
        apply_conditions(&event.into(), Response::from_view(2, body))
    };
    let ask = |tags: &str, body: Value| ask_with("if-none-match", tags, body).unwrap();
    let wrong = json!({ "balance": 9 });
    let right = json!({ "balance": 2 });
    let before = ask("", wrong.clone());
    let tag = before.etag().unwrap().to_owned();
    assert!(tag.starts_with("\"2.") && tag.len() == "\"2.12345678\"".len(), "{tag}");
    for known in [tag.clone(), format!("W/{tag}"), format!("\"1\", {tag}"), "*".to_owned()] {
        let same = ask(&known, wrong.clone());
        assert_eq!(
            (same.status, same.etag(), same.body.clone()),
            (StatusCode::NOT_MODIFIED, Some(&*tag), None)
        );
    }
    for other in [&*tag, "\"2\"", "W/\"2\"", "2", ""] {
        let shown = ask(other, right.clone());
        assert_eq!((shown.status, shown.body.as_ref()), (StatusCode::OK, Some(&right)), "{other}");
        assert_ne!(shown.etag(), Some(&*tag));
    }
    for known in [&*tag, "\"2\"", "\"1\", \"2\"", "*"] {
        assert_eq!(
            ask_with("if-match", known, right.clone()).unwrap().status,
            StatusCode::OK,
            "{known}"
        );
    }
    for other in ["\"1\"", "W/\"2\"", "2", ""] {
        let problem = ask_with("if-match", other, right.clone()).unwrap_err();
        assert_eq!(
            (problem.status, problem.version),
            (StatusCode::PRECONDITION_FAILED, Some(2)),
            "{other}"
        );
    }
}

#[test]
fn a_page_has_1_to_200_rows() {
    let limit = |limit: &str| {
        let fields = json!({ "rawQueryString": format!("limit={limit}") });
        let event: ApiGatewayV2httpRequest = http_event("GET /tanks", fields);
        super::limit(&event.into()).ok()
    };
    assert_eq!(["0", "1", "200", "201"].map(limit), [None, Some(1), Some(200), None]);
}

#[test]
fn an_unreadable_row_is_named_and_the_rest_of_the_page_is_shown() {
    let unreadable = UnreadableRow { key: "2".into(), reason: "missing field `room`".into() };
    let rows = vec![Ok(json!({ "id": 1 })), Err(unreadable), Ok(json!({ "id": 3 }))];
    let body = page_body("rooms", Page { rows, cursor: Some("next".into()) });
    let rooms = json!([{ "id": 1 }, { "id": 3 }]);
    assert_eq!(body, json!({ "rooms": rooms, "unreadable": ["2"], "cursor": "next" }));
    let whole = Page { rows: vec![Ok(json!({ "id": 1 }))], cursor: None };
    assert_eq!(page_body("rooms", whole), json!({ "rooms": [{ "id": 1 }] }));
}

#[test]
fn the_schema_of_a_page_has_the_rows_under_their_name_and_requires_them() {
    #[derive(Serialize, JsonSchema)]
    struct Room {
        id: u8,
    }
    let mut generator = SchemaGenerator::default();
    let schema = page_schema::<Room>("rooms")(&mut generator).to_value();
    assert_eq!(schema["required"], json!(["rooms"]));
    assert_eq!(schema["properties"]["rooms"]["items"], json!({ "$ref": "#/$defs/Room" }));
    assert_eq!(schema["properties"]["cursor"]["type"], json!(["string", "null"]));
    assert_eq!(schema["properties"]["unreadable"]["items"]["type"], "string");
}

/// A page ends before it exceeds the limit of Lambda, and the next page resumes there.
#[tokio::test]
async fn a_page_that_is_too_large_for_a_response_ends_early() {
    let rows: Vec<_> = (0..9_usize).collect();
    let read = async |query: &PageQuery<'_>| {
        let first = query.cursor.map_or(0, |cursor| cursor.parse().unwrap());
        let last = rows.len().min(first + usize::try_from(query.limit).unwrap());
        let cursor = (last < rows.len()).then(|| last.to_string());
        Ok(Page { rows: rows[first..last].iter().map(|row| Ok(*row)).collect(), cursor })
    };
    // Each row has a megabyte in the response: the body is JSON within JSON, so that a quote is
    // escaped twice, to four characters.
    let shown = |row: usize| json!([row, "\"".repeat(250_000)]);
    let (mut all, mut cursor) = (Vec::new(), None::<String>);
    loop {
        let query = PageQuery::new("", 9, cursor.as_deref());
        let page = page_that_fits(query, read, shown).await.unwrap();
        let (page, next) = page.whole().unwrap();
        let answer = json!({ "body": json!(page).to_string() }).to_string();
        assert!(!page.is_empty() && answer.len() < 6_000_000, "{}", answer.len());
        all.extend(page.iter().map(|row| usize::try_from(row[0].as_u64().unwrap()).unwrap()));
        cursor = next;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(all, rows);
}
