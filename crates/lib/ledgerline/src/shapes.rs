//! Shapes of stored events, states and rows, read by the production code: the corpus of all shapes
//! that were ever stored.
//!
//! A corpus is a JSON file in the folder `shapes` of a model. `<category>.json` has the events and
//! the states of an aggregate. `rows/<view>.json` has the rows of a view.

use std::fmt::Debug;

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{
    Aggregate, Aggregates, Commit, EventTypes, RecordedEvent, RecordedState, Visitor, decode,
    decode_state, encode, encode_state, fold,
};

/// The numbers of shapes in a corpus.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Shapes of events.
    pub events: usize,
    /// Shapes of states.
    pub states: usize,
}

/// The corpus of an aggregate.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Corpus {
    events: Vec<Event>,
    states: Vec<State>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Event {
    #[serde(rename = "type")]
    event_type: String,
    schema: u32,
    data: Value,
    /// The data of the event after this code has read and written it, if it differs from `data`.
    now: Option<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    schema: u32,
    data: Value,
    /// The state that a state of an older schema becomes, if the aggregate upcasts it.
    #[serde(default)]
    now: Option<Value>,
}

/// Reads all shapes in the corpus of an aggregate.
///
/// # Errors
/// When the corpus lacks a shape of the aggregate's code, or the code reads a shape differently
/// from the corpus. The text names the shape, and what to do.
pub fn check<A: Aggregate>(corpus: &str) -> Result<Counts, String> {
    let Corpus { events, states } =
        serde_json::from_str(corpus).map_err(|error| error.to_string())?;
    check_events::<A>(&events)?;
    check_states::<A>(&states)?;
    Ok(Counts { events: events.len(), states: states.len() })
}

fn check_events<A: Aggregate>(shapes: &[Event]) -> Result<(), String> {
    for known in A::Event::TYPES {
        let of_type = |shape: &&Event| known.has_name(&shape.event_type);
        for name in known.names() {
            if !shapes.iter().any(|shape| shape.event_type == name) {
                return Err(format!(
                    "the event type `{name}` is not in its file of shapes: a new type gets a line \
                    there, and a renamed type keeps its old name as well (docs/recipes.md, \"Rename \
                    an event type\")"
                ));
            }
        }
        for schema in 1..=known.schema {
            if !shapes.iter().filter(of_type).any(|shape| shape.schema == schema) {
                return Err(format!(
                    "schema {schema} of {} is not in its file of shapes",
                    known.name
                ));
            }
        }
    }
    let mut events = Vec::new();
    for Event { event_type, schema, data, now } in shapes {
        let stored = RecordedEvent {
            event_type: event_type.clone(),
            schema: *schema,
            data: data.to_string(),
        };
        let event = decode::<A>(&stored).map_err(|error| {
            format!("{error}: a changed event has the next schema number (docs/recipes.md, \"Add a field to an event\")")
        })?;
        let again = encode::<A>(&event).map_err(|error| error.to_string())?;
        let (expected, found) = (
            now.as_ref().unwrap_or(data),
            serde_json::from_str(&again.data).unwrap_or(Value::Null),
        );
        if !event.event_type().has_name(event_type) || found != *expected {
            return Err(format!(
                "{event_type}, schema {schema}, is read as {found}, not {expected}: a changed event has the next schema number (docs/recipes.md, \"Add a field to an event\")"
            ));
        }
        if now.is_none() && again.schema != *schema {
            return Err(format!(
                "{event_type}, schema {schema}, is old, and its file has no \"now\" for it"
            ));
        }
        events.push(event);
    }
    // A fold must not panic at any events that were ever stored, in any order.
    fold::<A>(A::initial(), &events);
    Ok(())
}

fn check_states<A: Aggregate>(shapes: &[State]) -> Result<(), String> {
    for schema in 1..=A::STATE_SCHEMA {
        if !shapes.iter().any(|state| state.schema == schema) {
            return Err(format!("schema {schema} of the state is not in its file of shapes"));
        }
    }
    for State { schema, data, now } in shapes {
        let stored = RecordedState { schema: *schema, data: data.to_string() };
        match (decode_state::<A>(&stored), *schema == A::STATE_SCHEMA) {
            (None, false) if now.is_none() => {}
            (Some(state), is_newest) if is_newest != now.is_some() => {
                let again = encode_state::<A>(&state).map_err(|error| error.to_string())?;
                if serde_json::from_str::<Value>(&again.data).ok().as_ref()
                    != Some(now.as_ref().unwrap_or(data))
                {
                    return Err(format!(
                        "a state of schema {schema} is read as {}: a changed state has the next STATE_SCHEMA",
                        again.data
                    ));
                }
            }
            (None, true) => {
                let error = serde_json::from_value::<A::State>(data.clone()).err();
                let error = error.map_or_else(String::new, |error| format!(": {error}"));
                return Err(format!(
                    "a state of schema {schema} cannot be read{error}. A changed state has the next STATE_SCHEMA, and a line of its own in the file of shapes"
                ));
            }
            (None, false) => {
                return Err(format!(
                    "upcast_state does not read a state of schema {schema}, for which the file has a \"now\""
                ));
            }
            (Some(_), false) => {
                return Err(format!(
                    "upcast_state reads a state of schema {schema}, for which the file has no \"now\""
                ));
            }
            (Some(_), true) => {
                return Err(format!("a state of schema {schema} is the newest: it has no \"now\""));
            }
        }
    }
    Ok(())
}

/// Returns the reason why the aggregates cannot read a commit, without values of it (rule 14);
/// `None` if they can.
pub fn unreadable<L: Aggregates>(commit: &Commit) -> Option<String> {
    struct Reading<'a> {
        commit: &'a Commit,
        is_known: bool,
        problem: Option<String>,
    }
    impl Visitor for Reading<'_> {
        fn visit<A: Aggregate>(&mut self) {
            if A::CATEGORY == self.commit.stream.category() {
                self.is_known = true;
                let mut events = self.commit.events.iter();
                let error = events.find_map(|event| decode::<A>(event).err());
                self.problem = error.map(|error| error.to_string());
            }
        }
    }
    let mut reading = Reading { commit, is_known: false, problem: None };
    L::visit(&mut reading);
    if reading.is_known {
        return reading.problem;
    }
    Some(format!("no aggregate has the category {}", commit.stream.category()))
}

/// Reads every row shape that a view has ever written. A test of the view calls it with the JSON of
/// `shapes/rows/<view>.json`, a list of rows, the newest shape last.
///
/// The rows of a read table keep the shape of the code that wrote them until their streams change,
/// or the view is rebuilt. So a new field of a row needs a default, and the list needs one more
/// row.
///
/// ```
/// #[derive(Debug, serde::Serialize, serde::Deserialize)]
/// struct Row {
///     id: String,
///     #[serde(default)]
///     colour: String,
/// }
///
/// ledgerline::shapes::check_rows::<Row>(r#"[{ "id": "1" }, { "id": "1", "colour": "red" }]"#);
/// ```
///
/// # Panics
/// When a row cannot be read, or the last one does not have the shape that this code writes.
#[track_caller]
pub fn check_rows<Row: Debug + Serialize + DeserializeOwned>(rows: &str) {
    let rows: Vec<Value> =
        serde_json::from_str(rows).unwrap_or_else(|error| panic!("the rows: {error}"));
    let mut written = Value::Null;
    for (row, number) in rows.iter().zip(1..) {
        let read: Row = serde_json::from_value(row.clone()).unwrap_or_else(|error| {
            panic!(
                "row {number} of the file, as an earlier version wrote it, cannot be read: {error}. \
                 Give the field a default: #[serde(default)]"
            )
        });
        written =
            serde_json::to_value(&read).unwrap_or_else(|error| panic!("row {number}: {error}"));
    }
    assert_eq!(
        rows.last(),
        Some(&written),
        "the last row of the file does not have the newest shape: add the second value to it"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        StreamId,
        testing::tank::{self, Tank, Tanks},
    };

    #[test]
    fn the_shapes_of_the_tank_are_read() {
        let counts = check::<Tank>(tank::SHAPES).unwrap();
        assert!(counts.events > 3 && counts.states > 1, "{counts:?}");
    }

    /// A stored shape must be readable for ever. Each triple changes a readable shape into an
    /// unreadable one, as an edit of the code would. Its third text must be in the report.
    #[test]
    fn an_unreadable_stored_shape_is_reported() {
        for (text, instead, says) in [
            // A field has another name, or another type.
            (
                r#""amount": 5000"#,
                r#""litres": 5000"#,
                "TankFilled does not have the shape of schema 1",
            ),
            (
                r#""level": 1000, "note""#,
                r#""level": "1000", "note""#,
                "TankDrawn does not have the shape of schema 1",
            ),
            // The decoder drops a stored field.
            (r#""note": "rain""#, r#""remark": "rain""#, "is read as"),
            // An event is missing, or has an unknown schema.
            (
                r#""type": "TankMoved""#,
                r#""type": "TankPushed""#,
                "`TankMoved` is not in its file of shapes: a new type gets a line there, and a renamed type keeps its old name as well (docs/recipes.md, \"Rename an event type\")",
            ),
            (
                r#""schema": 2, "data": {"site""#,
                r#""schema": 3, "data": {"site""#,
                "schema 2 of TankInstalled is not in its file of shapes",
            ),
            // An upcaster returns another event.
            (
                r#""liquid": "water", "installedBy": "ada", "on""#,
                r#""liquid": "oil", "installedBy": "ada", "on""#,
                "is read as",
            ),
            // A state of the current schema is unreadable: every stream would be folded from its
            // beginning.
            (
                r#""status": "scrapped""#,
                r#""status": "sold""#,
                "a state of schema 1 cannot be read: unknown variant `sold`",
            ),
        ] {
            let (before, after) =
                tank::SHAPES.split_once(text).unwrap_or_else(|| panic!("there is no {text}"));
            let wrong = check::<Tank>(&format!("{before}{instead}{after}")).unwrap_err();
            assert!(wrong.contains(says), "{instead}: {wrong}");
        }
    }

    #[test]
    fn a_commit_of_an_unknown_type_or_category_is_unreadable() {
        let mut commit = crate::contract::commit(&StreamId::new("tank", "1").unwrap(), 1);
        commit.events.clear();
        assert_eq!(unreadable::<Tanks>(&commit), None);
        let data = "{}".to_owned();
        commit.events.push(RecordedEvent { event_type: "TankFrozen".into(), schema: 1, data });
        assert!(unreadable::<Tanks>(&commit).unwrap().contains("TankFrozen"));
        commit.stream = StreamId::new("moon", "1").unwrap();
        assert_eq!(unreadable::<Tanks>(&commit).unwrap(), "no aggregate has the category moon");
    }

    #[derive(Debug, Serialize, Deserialize)]
    struct Row {
        id: String,
        colour: String,
    }

    #[test]
    #[should_panic(
        expected = "row 1 of the file, as an earlier version wrote it, cannot be read: missing field `colour`"
    )]
    fn an_earlier_row_without_a_required_field_is_reported() {
        check_rows::<Row>(r#"[{ "id": "1" }, { "id": "1", "colour": "red" }]"#);
    }

    #[test]
    #[should_panic(expected = "the last row of the file does not have the newest shape")]
    fn a_row_shape_that_is_not_in_the_file_is_reported() {
        check_rows::<Row>(r#"[{ "id": "1", "colour": "red", "size": 2 }]"#);
    }
}
