//! The contract in the words that validators and generators of clients know.

use serde_json::{Map, Value, json};

/// The keywords whose values are data, and not schemas.
const DATA: [&str; 5] = ["const", "default", "enum", "example", "examples"];
/// The fields whose own fields are names of schemas.
const SCHEMA_MAPS: [&str; 4] = ["$defs", "patternProperties", "properties", "schemas"];
/// The fields with one schema. `additionalProperties` is left out: every tool reads `false` there.
const SCHEMA_FIELDS: [&str; 9] =
    ["contains", "else", "if", "items", "not", "payload", "propertyNames", "schema", "then"];

/// Writes the schemas in a document with fewer words:
///
/// * An empty schema replaces `true`. Generators of clients read objects only.
/// * Bounds replace the formats of Rust's numbers, such as `uint8`. Validators refuse formats that
///   no standard has.
pub(super) fn simplify(document: &mut Value) {
    match document {
        Value::Array(values) => values.iter_mut().for_each(simplify_schema),
        Value::Object(fields) => {
            for (name, value) in fields.iter_mut() {
                match value.as_object_mut().filter(|_| SCHEMA_MAPS.contains(&name.as_str())) {
                    Some(named) => named.values_mut().for_each(simplify_schema),
                    None if SCHEMA_FIELDS.contains(&name.as_str()) => simplify_schema(value),
                    None if DATA.contains(&name.as_str()) => {}
                    None => simplify(value),
                }
            }
            replace_format(fields);
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn simplify_schema(schema: &mut Value) {
    match schema.as_bool() {
        Some(true) => *schema = json!({}),
        Some(false) => *schema = json!({ "not": {} }),
        None => simplify(schema),
    }
}

/// Replaces the format of a number that only schemars writes. The bounds of 64 and more bits are
/// left out, because no reader of JSON in JavaScript holds them exactly.
fn replace_format(schema: &mut Map<String, Value>) {
    let (lowest, highest) = match schema.get("format").and_then(Value::as_str) {
        Some("int8") => (i64::from(i8::MIN), Some(i64::from(i8::MAX))),
        Some("int16") => (i64::from(i16::MIN), Some(i64::from(i16::MAX))),
        Some("uint8") => (0, Some(i64::from(u8::MAX))),
        Some("uint16") => (0, Some(i64::from(u16::MAX))),
        Some("uint32") => (0, Some(i64::from(u32::MAX))),
        Some("uint64" | "uint128" | "uint") => (0, None),
        Some("int128" | "int") => {
            schema.remove("format");
            return;
        }
        _ => return,
    };
    schema.remove("format");
    schema.entry("minimum").or_insert(lowest.into());
    if let Some(highest) = highest {
        schema.entry("maximum").or_insert(highest.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_schema_has_words_that_other_tools_refuse() {
        for (schema, expected) in [
            (
                json!({ "properties": { "data": true, "items": { "items": true } } }),
                json!({ "properties": { "data": {}, "items": { "items": {} } } }),
            ),
            (
                json!({ "anyOf": [true, { "not": false }] }),
                json!({ "anyOf": [{}, { "not": { "not": {} } }] }),
            ),
            (
                json!({ "schemas": { "enum": { "payload": true } } }),
                json!({ "schemas": { "enum": { "payload": {} } } }),
            ),
            (
                json!({ "type": ["integer", "null"], "format": "uint8", "minimum": 0, "maximum": 9 }),
                json!({ "type": ["integer", "null"], "minimum": 0, "maximum": 9 }),
            ),
            (json!({ "format": "uint32" }), json!({ "minimum": 0, "maximum": 4_294_967_295_u32 })),
            (json!({ "format": "uint64", "minimum": 1 }), json!({ "minimum": 1 })),
            (json!({ "format": "int128" }), json!({})),
        ] {
            let mut simple = schema.clone();
            simplify(&mut simple);
            assert_eq!(simple, expected, "{schema}");
        }
    }

    #[test]
    fn data_and_the_words_of_standards_stay() {
        for schema in [
            json!({ "additionalProperties": false, "required": true, "uniqueItems": true }),
            json!({ "const": true, "enum": [true], "default": { "format": "uint8" } }),
            json!({ "examples": [{ "properties": { "a": true } }] }),
            json!({ "format": "int64", "properties": { "format": { "format": "date-time" } } }),
        ] {
            let mut simple = schema.clone();
            simplify(&mut simple);
            assert_eq!(simple, schema);
        }
    }
}
