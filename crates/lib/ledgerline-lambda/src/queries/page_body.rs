//! The body of a page.

use ledgerline_dynamodb::{Page, UnreadableRow};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde_json::Value;

use crate::http::as_json;

/// The rest of a page's body, next to its rows. Flatten it into the type of the body.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct PageEnd {
    /// The cursor of the next page. The last page has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// The keys of rows that the program cannot read, if there are any. One such row must not keep
    /// the others from the client.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<String>,
}

/// Splits a page into the rows in the clients' form and the rest of the body. The rest has the
/// cursor of the next page, and the keys of the rows that this program cannot read (rule 11).
pub fn split_page<Row, Shown>(
    page: Page<Row>,
    shown: impl Fn(Row) -> Shown,
) -> (Vec<Shown>, PageEnd) {
    let (mut rows, mut unreadable, mut first) = (Vec::new(), Vec::new(), None);
    for row in page.rows {
        match row {
            Ok(row) => rows.push(shown(row)),
            Err(UnreadableRow { key, reason }) => {
                unreadable.push(key);
                first = first.or(Some(reason));
            }
        }
    }
    if let Some(reason) = first {
        // The keys are in the response. A key may be a caller's text, such as a name, so the log
        // leaves it out (rule 14).
        tracing::error!(
            rows = unreadable.len(),
            reason,
            "rows of an earlier version cannot be read: rebuild the view"
        );
    }
    (rows, PageEnd { cursor: page.cursor, unreadable })
}

/// Builds the body of a page: its rows under their name, and the rest.
pub(super) fn page_body(name: &str, page: Page<Value>) -> Value {
    let (rows, end) = split_page(page, |row| row);
    let mut body = as_json(end);
    body[name] = rows.into();
    body
}

/// Returns the function that makes the schema of [`page_body`].
pub(super) fn page_schema<Shown: JsonSchema>(
    name: &'static str,
) -> impl Fn(&mut SchemaGenerator) -> Schema + Send + Sync {
    move |generator| {
        let mut schema = PageEnd::json_schema(generator);
        let rows = generator.subschema_for::<Vec<Shown>>();
        let fields = schema.ensure_object();
        fields["properties"][name] = rows.into();
        fields.insert("required".into(), [name].as_slice().into());
        fields.insert("description".into(), format!("A page of {name}.").into());
        schema
    }
}
