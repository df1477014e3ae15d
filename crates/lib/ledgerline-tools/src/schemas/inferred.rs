//! Schemas of events at earlier numbers, inferred from stored shapes.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

/// Returns a schema that all samples fit. The description warns that the log may have data that the
/// schema refuses.
pub(super) fn schema(samples: &[&Value]) -> Value {
    let mut schema = infer(samples);
    schema["description"] =
        json!("Inferred from the stored shapes: the code has no type for this schema number.");
    schema
}

fn infer(samples: &[&Value]) -> Value {
    let types: BTreeSet<_> = samples.iter().map(|sample| type_of(sample)).collect();
    let mut schema = match types.iter().copied().collect::<Vec<_>>().as_slice() {
        [one] => json!({ "type": one }),
        several => json!({ "type": several }),
    };
    if types.contains("object") {
        let objects: Vec<&Map<_, _>> =
            samples.iter().filter_map(|sample| sample.as_object()).collect();
        let mut fields: BTreeMap<&String, Vec<&Value>> = BTreeMap::new();
        for (name, value) in objects.iter().flat_map(|object| object.iter()) {
            fields.entry(name).or_default().push(value);
        }
        let is_everywhere = |values: &Vec<&Value>| values.len() == objects.len();
        let required: Vec<_> = fields
            .iter()
            .filter(|(_, values)| is_everywhere(values))
            .map(|(name, _)| *name)
            .collect();
        schema["required"] = json!(required);
        schema["properties"] =
            fields.iter().map(|(name, values)| ((*name).clone(), infer(values))).collect();
    }
    if types.contains("array") {
        let items: Vec<_> =
            samples.iter().filter_map(|sample| sample.as_array()).flatten().collect();
        if !items.is_empty() {
            schema["items"] = infer(&items);
        }
    }
    schema
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schemas::misfit;

    #[test]
    fn a_field_of_every_sample_is_required_and_a_null_is_allowed_where_one_was_stored() {
        let samples = [
            json!({ "owner": "Ada", "openedBy": null, "tags": [] }),
            json!({ "owner": "Bob", "openedBy": "bob", "note": "x", "tags": ["a"] }),
        ];
        let schema = schema(&samples.iter().collect::<Vec<_>>());
        assert_eq!(schema["required"], json!(["openedBy", "owner", "tags"]));
        assert_eq!(schema["properties"]["openedBy"]["type"], json!(["null", "string"]));
        assert_eq!(schema["properties"]["tags"]["items"]["type"], "string");
        assert!(samples.iter().all(|sample| misfit(&schema, sample).is_none()));
        assert!(misfit(&schema, &json!({ "owner": 1, "openedBy": null, "tags": [] })).is_some());
    }
}
