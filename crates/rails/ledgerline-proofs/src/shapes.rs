//! Stored events and states, read as the aggregates of an application read them: the corpus of all shapes that were ever stored, and
//! bad input.

use ledgerline::{
    Aggregate, Aggregates, Commit, EventTypes, RecordedEvent, RecordedState, Visitor, decode, decode_state,
    encode, encode_state,
};
use serde::Deserialize;
use serde_json::Value;

use crate::files::Files;

/// The shapes of an aggregate.
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
    /// The data of the event after this code has read and written it, if they are not the same.
    now: Option<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    schema: u32,
    data: Value,
    /// The state that a state of an older schema becomes, if the aggregate brings it up to date.
    #[serde(default)]
    now: Option<Value>,
}

/// The result of reading all shapes of an application.
#[derive(Debug, Default)]
pub(crate) struct Shapes {
    pub(crate) wrong: Vec<String>,
    pub(crate) events: usize,
    pub(crate) states: usize,
}

/// Reads the shapes of each aggregate.
pub(crate) fn read_all<L: Aggregates>(files: &Files) -> Shapes {
    struct Read<'a>(&'a Files, Shapes);
    impl Visitor for Read<'_> {
        fn visit<A: Aggregate>(&mut self) {
            match read::<A>(self.0) {
                Ok((events, states)) => {
                    self.1.events += events;
                    self.1.states += states;
                }
                Err(wrong) => self.1.wrong.push(format!("{}: {wrong}", A::CATEGORY)),
            }
        }
    }
    let mut read = Read(files, Shapes::default());
    L::visit(&mut read);
    read.1
}

/// Reads the shapes of one aggregate. The result is the number of shapes of events, and of states.
fn read<A: Aggregate>(files: &Files) -> Result<(usize, usize), String> {
    let text = files.text(&format!("{}.json", A::CATEGORY))?;
    let shapes: Corpus = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    for known in A::Event::TYPES {
        for schema in 1..=known.schema {
            let of = |event: &&Event| event.event_type == known.name && event.schema == schema;
            if !shapes.events.iter().any(|event| of(&event)) {
                return Err(format!("schema {schema} of {} is not in its file of shapes", known.name));
            }
        }
    }
    let mut events = Vec::new();
    for Event { event_type, schema, data, now } in &shapes.events {
        let stored =
            RecordedEvent { event_type: event_type.clone(), schema: *schema, data: data.to_string() };
        let event = decode::<A>(&stored).map_err(|error| error.to_string())?;
        let again = encode::<A>(&event).map_err(|error| error.to_string())?;
        let (expected, found) =
            (now.as_ref().unwrap_or(data), serde_json::from_str(&again.data).unwrap_or(Value::Null));
        if again.event_type != *event_type || found != *expected {
            return Err(format!("{event_type}, schema {schema}, is read as {found}, not {expected}"));
        }
        if now.is_none() && again.schema != *schema {
            return Err(format!(
                "{event_type}, schema {schema}, is old, and its file does not say what it is now"
            ));
        }
        events.push(event);
    }
    // A fold must not panic at events that were stored at some time, in any order.
    ledgerline::fold::<A>(A::initial(), &events);
    for schema in 1..=A::STATE_SCHEMA {
        if !shapes.states.iter().any(|state| state.schema == schema) {
            return Err(format!("schema {schema} of the state is not in its file of shapes"));
        }
    }
    for State { schema, data, now } in &shapes.states {
        let stored = RecordedState { schema: *schema, data: data.to_string() };
        match (decode_state::<A>(&stored), *schema == A::STATE_SCHEMA) {
            (None, false) if now.is_none() => {}
            (Some(state), current) if current != now.is_some() => {
                let again = encode_state::<A>(&state).map_err(|error| error.to_string())?;
                if serde_json::from_str::<Value>(&again.data).ok().as_ref()
                    != Some(now.as_ref().unwrap_or(data))
                {
                    return Err(format!("a state of schema {schema} is read as {}", again.data));
                }
            }
            (read, current) => {
                let read = if read.is_some() { "read" } else { "not read" };
                return Err(format!("a state of schema {schema}, which is current: {current}, is {read}"));
            }
        }
    }
    Ok((shapes.events.len(), shapes.states.len()))
}

/// Reads the events as each of the aggregates.
pub(crate) fn read_commit<L: Aggregates>(commit: &Commit) {
    struct Read<'a>(&'a Commit);
    impl Visitor for Read<'_> {
        fn visit<A: Aggregate>(&mut self) {
            let events: Vec<_> = self.0.events.iter().filter_map(|event| decode::<A>(event).ok()).collect();
            let _ = ledgerline::fold::<A>(A::initial(), &events);
        }
    }
    L::visit(&mut Read(commit));
}

/// Reads a state as each of the aggregates. The result is 1 if one of them accepts it, and 0 if none does.
pub(crate) fn read_state<L: Aggregates>(state: &RecordedState) -> usize {
    struct Read<'a>(&'a RecordedState, usize);
    impl Visitor for Read<'_> {
        fn visit<A: Aggregate>(&mut self) {
            self.1 |= usize::from(decode_state::<A>(self.0).is_some());
        }
    }
    let mut read = Read(state, 0);
    L::visit(&mut read);
    read.1
}

#[cfg(test)]
mod tests {
    use std::fs;

    use ledgerline::tank::SHAPES;
    use tempfile::tempdir;

    use super::*;
    use crate::tank::Tanks;

    /// A stored shape must be read for ever. Each triple turns a shape that this code reads into one that it does not read, as an edit
    /// of the code would, and has the report.
    #[test]
    fn a_shape_that_was_stored_and_is_not_read_any_more_is_reported() {
        for (text, instead, says) in [
            // A field has another name, or another type.
            (r#""amount": 5000"#, r#""litres": 5000"#, "TankFilled does not have the shape of schema 1"),
            (
                r#""level": 1000, "note""#,
                r#""level": "1000", "note""#,
                "TankDrawn does not have the shape of schema 1",
            ),
            // A field that was stored is forgotten when it is read.
            (r#""note": "rain""#, r#""remark": "rain""#, "is read as"),
            // An event is missing, or has a schema that this code does not know.
            (
                r#""type": "TankMoved""#,
                r#""type": "TankPushed""#,
                "schema 1 of TankMoved is not in its file of shapes",
            ),
            (
                r#""schema": 2, "data": {"site""#,
                r#""schema": 3, "data": {"site""#,
                "schema 2 of TankInstalled is not in its file of shapes",
            ),
            // An upcaster makes another event.
            (
                r#""liquid": "water", "installedBy": "ada", "on""#,
                r#""liquid": "oil", "installedBy": "ada", "on""#,
                "is read as",
            ),
            // A state of the current schema cannot be read: every stream would be folded from its beginning.
            (
                r#""status": "scrapped""#,
                r#""status": "sold""#,
                "a state of schema 1, which is current: true, is not read",
            ),
        ] {
            let (before, after) = SHAPES.split_once(text).unwrap_or_else(|| panic!("there is no {text}"));
            let folder = tempdir().unwrap();
            fs::write(folder.path().join("tank.json"), format!("{before}{instead}{after}")).unwrap();
            let wrong = read_all::<Tanks>(&Files::Folder(folder.path().to_owned())).wrong;
            assert!(wrong.iter().any(|wrong| wrong.contains(says)), "{instead}: {wrong:?}");
        }
    }
}
