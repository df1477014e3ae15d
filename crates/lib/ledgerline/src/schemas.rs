//! JSON Schemas of stored events, states and rows: the contract with programs in other languages.
//!
//! Every schema stands alone, and is of the dialect 2020-12. Events and states are described as
//! they are written. Rows are described as they are read, because a view may have rows of earlier
//! versions.

use schemars::{JsonSchema, generate::SchemaSettings};
use serde_json::Value;

use crate::{Aggregate, EventType};

/// The URI of the dialect of all schemas.
pub const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";

/// Returns the schema of the data of an event, at the current schema number of its type. Returns
/// `None` if the aggregate has no such type.
pub fn event<A: Aggregate>(known: &EventType) -> Option<Value> {
    let events = schema_for_writers::<A::Event>();
    let variants = match events.get("oneOf") {
        Some(Value::Array(variants)) => variants.clone(),
        // A type with one event has one schema, and no choice.
        _ => vec![events],
    };
    let of_type =
        |variant: &Value| variant.pointer("/properties/type/const") == Some(&known.name.into());
    let mut variant = variants.into_iter().find(of_type)?;
    let description = variant["description"].take();
    let mut data = variant["properties"]["data"].take();
    if !description.is_null() {
        data["description"] = description;
    }
    Some(data)
}

/// Returns the schema of the state of an aggregate.
pub fn state<A: Aggregate>() -> Value {
    schema_for_writers::<A::State>()
}

/// Returns the schema of a row.
pub fn row<Row: JsonSchema>() -> Value {
    schema_with::<Row>(SchemaSettings::draft2020_12())
}

fn schema_for_writers<T: JsonSchema>() -> Value {
    schema_with::<T>(SchemaSettings::draft2020_12().for_serialize())
}

fn schema_with<T: JsonSchema>(settings: SchemaSettings) -> Value {
    let settings = settings.with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    settings.into_generator().into_root_schema_for::<T>().to_value()
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        EventTypes, encode,
        testing::tank::{Event, SHAPES, Tank},
    };

    /// Returns the reasons why a value does not fit a schema; `None` if the value fits.
    pub(crate) fn misfit(schema: &Value, value: &Value) -> Option<String> {
        let (mut schemas, mut compiler) = (boon::Schemas::new(), boon::Compiler::new());
        compiler.add_resource("schema.json", schema.clone()).unwrap();
        compiler.enable_format_assertions();
        let index = compiler.compile("schema.json", &mut schemas).unwrap();
        schemas.validate(value, index).err().map(|error| error.to_string())
    }

    #[test]
    fn every_stored_shape_of_the_current_number_fits_the_schema_of_its_event() {
        let shapes: Value = serde_json::from_str(SHAPES).unwrap();
        for known in Event::TYPES {
            let schema = event::<Tank>(known).unwrap();
            let of_type =
                |shape: &&Value| shape["type"] == known.name && shape["schema"] == known.schema;
            for shape in shapes["events"].as_array().unwrap().iter().filter(of_type) {
                assert_eq!(misfit(&schema, &shape["data"]), None, "{shape} {schema}");
            }
        }
    }

    #[test]
    fn the_schema_of_an_event_has_its_comment_its_fields_and_their_types() {
        let filled = Event::TYPES.iter().find(|known| known.name == "TankFilled").unwrap();
        let schema = event::<Tank>(filled).unwrap();
        assert_eq!(
            schema["description"],
            "An amount of litres was filled in. `level` is the level after it."
        );
        assert_eq!(schema["properties"]["amount"]["type"], "integer");
        assert_eq!(schema["properties"]["on"]["format"], "date");
        assert_eq!(schema["required"], json!(["amount", "level", "on"]));
        assert!(event::<Tank>(&EventType::new("Unknown", 1, &[])).is_none());
    }

    #[test]
    fn the_schema_of_a_state_tells_its_variants_apart() {
        let schema = state::<Tank>();
        assert_eq!(misfit(&schema, &json!({ "status": "absent" })), None);
        assert!(misfit(&schema, &json!({ "status": "installed" })).is_some());
    }

    #[test]
    fn an_encoded_event_fits_the_schema_of_its_type() {
        let scrapped = Event::TankScrapped { on: jiff::civil::date(2026, 11, 28) };
        let data: Value = serde_json::from_str(&encode::<Tank>(&scrapped).unwrap().data).unwrap();
        let schema = event::<Tank>(scrapped.event_type()).unwrap();
        assert_eq!(misfit(&schema, &data), None);
    }
}
