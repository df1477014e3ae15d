//! The schemas of stored events and rows.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use ledgerline::{
    Aggregate, Aggregates, EventType, EventTypes, Visitor,
    schemas::{DIALECT, event, row},
};
use schemars::JsonSchema;
use serde_json::{Value, json};

use super::{Documents, FOLDER, inferred, misfit};

/// The schemas of all events and rows, and the problems of stored shapes with them.
#[derive(Debug, Default)]
pub(super) struct Stored {
    pub(super) documents: Documents,
    pub(super) problems: Vec<String>,
}

/// Makes the schemas of these aggregates and rows. `known` has the existing documents, and the
/// schema of an earlier number keeps its document. If an earlier number has no document, this
/// function infers the schema from the stored shapes.
///
/// # Errors
/// When a file of shapes cannot be read.
pub(super) fn collect<L: Aggregates>(root: &Path, known: &Documents) -> Result<Stored> {
    let shapes = shapes(root)?;
    let mut visit = Visit {
        shapes: &shapes,
        known,
        rows: BTreeSet::new(),
        names: BTreeMap::new(),
        stored: Stored::default(),
    };
    L::visit(&mut visit);
    let Visit { rows, names, mut stored, .. } = visit;
    stored.problems.extend(known.keys().filter_map(|path| lost_name(path, &names)));
    let unlisted = shapes.keys().filter_map(|name| name.strip_prefix("rows/"));
    let unlisted = unlisted.filter(|name| !rows.contains(name));
    stored.problems.extend(unlisted.map(|name| {
        format!(
            "shapes/rows/{name}.json has rows of no type: name it in `Aggregates::visit`, \
            with `visitor.row`"
        )
    }));
    Ok(stored)
}

/// Returns the problem with the document of an event under a name that the code does not read.
/// These documents have every name that was ever written, and none of them is removed.
fn lost_name(path: &Path, names: &BTreeMap<&str, BTreeSet<&str>>) -> Option<String> {
    let (category, file) = path.strip_prefix("events").ok()?.to_str()?.split_once('/')?;
    let name = file.split('.').next()?;
    let is_lost = names.get(category).is_some_and(|names| !names.contains(name));
    is_lost.then(|| {
        format!(
            "{FOLDER}/{} has the event type `{name}`, which the code does not read: stored events \
            keep their name for ever (docs/recipes.md of ledgerline, \"Rename an event type\"). If \
            no log has such an event, delete the file",
            path.display()
        )
    })
}

/// Reads the files of shapes of all applications, by their names in `model/shapes`.
fn shapes(root: &Path) -> Result<BTreeMap<String, Value>> {
    let applications = root.join("crates/apps");
    let mut shapes = BTreeMap::new();
    for application in
        fs::read_dir(&applications).with_context(|| applications.display().to_string())?
    {
        let folder = application?.path().join("model/shapes");
        for inner in ["", "rows/"] {
            let Ok(entries) = fs::read_dir(folder.join(inner)) else { continue };
            for entry in entries {
                let path = entry?.path();
                let Some(name) =
                    path.file_name().and_then(|name| name.to_str()?.strip_suffix(".json"))
                else {
                    continue;
                };
                let text = fs::read_to_string(&path)?;
                let text =
                    serde_json::from_str(&text).with_context(|| path.display().to_string())?;
                shapes.insert(format!("{inner}{name}"), text);
            }
        }
    }
    Ok(shapes)
}

struct Visit<'a> {
    shapes: &'a BTreeMap<String, Value>,
    known: &'a Documents,
    rows: BTreeSet<&'static str>,
    /// The names of the event types, by category.
    names: BTreeMap<&'static str, BTreeSet<&'static str>>,
    stored: Stored,
}

impl Visitor for Visit<'_> {
    fn visit<A: Aggregate>(&mut self) {
        for known in A::Event::TYPES {
            self.names.entry(A::CATEGORY).or_default().extend(known.names());
            for schema in 1..=known.schema {
                known.names().for_each(|name| self.event::<A>(known, name, schema));
            }
        }
    }

    fn row<Row: JsonSchema>(&mut self, name: &'static str) {
        self.rows.insert(name);
        let samples = self.shapes.get(&format!("rows/{name}")).and_then(Value::as_array);
        let title = format!("A row of {name}");
        let path = PathBuf::from(format!("rows/{name}.json"));
        self.add(path, row::<Row>(), &title, samples.into_iter().flatten());
    }
}

impl Visit<'_> {
    /// Adds the schema of an event at a schema number, under one of the names of its type.
    fn event<A: Aggregate>(&mut self, known: &EventType, name: &str, schema: u32) {
        let category = A::CATEGORY;
        let samples = self.shapes.get(category).and_then(|shapes| shapes["events"].as_array());
        let of_type = |sample: &&Value| sample["type"] == *name && sample["schema"] == schema;
        let samples: Vec<_> =
            samples.into_iter().flatten().filter(of_type).map(|sample| &sample["data"]).collect();
        let path = path(category, name, schema);
        let is_current = schema == known.schema && name == known.name;
        if samples.is_empty() && !self.known.contains_key(&path) && !is_current {
            return;
        }
        let made = match event::<A>(known) {
            Some(made) if is_current => made,
            _ => match self.known.get(&path) {
                Some(frozen) => frozen.clone(),
                None => inferred::schema(&samples),
            },
        };
        let title = format!("{name}, schema {schema}");
        self.add(path, made, &title, samples);
    }

    fn add<'s>(
        &mut self,
        path: PathBuf,
        mut schema: Value,
        title: &str,
        samples: impl IntoIterator<Item = &'s Value>,
    ) {
        schema["$schema"] = json!(DIALECT);
        schema["title"] = json!(title);
        let place = path.display();
        let misfits = samples.into_iter().filter_map(|sample| misfit(&schema, sample));
        let misfits = misfits.map(|why| format!("{place}: a stored shape does not fit: {why}"));
        self.stored.problems.extend(misfits);
        self.stored.documents.insert(path, schema);
    }
}

/// Returns the path of the schema of an event.
pub(super) fn path(category: &str, name: &str, schema: u32) -> PathBuf {
    PathBuf::from(format!("events/{category}/{name}.{schema}.json"))
}

#[cfg(test)]
mod tests {
    use ledgerline::testing::tank::{SHAPES, Tanks};

    use super::*;

    fn workspace(shapes: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("crates/apps/water/model/shapes");
        fs::create_dir_all(folder.join("rows")).unwrap();
        fs::write(folder.join("tank.json"), shapes).unwrap();
        root
    }

    #[test]
    fn an_earlier_number_is_inferred_once_and_stays_as_it_is() {
        let root = workspace(SHAPES);
        let Stored { documents, problems } =
            collect::<Tanks>(root.path(), &Documents::new()).unwrap();
        assert_eq!(problems, Vec::<String>::new());
        let first = path("tank", "TankInstalled", 1);
        let is_inferred =
            |path: &PathBuf| documents[path]["description"].to_string().contains("Inferred");
        assert!(is_inferred(&first) && !is_inferred(&path("tank", "TankInstalled", 2)));
        let mut frozen = documents.clone();
        frozen.get_mut(&first).unwrap()["description"] = json!("frozen");
        let again = collect::<Tanks>(root.path(), &frozen).unwrap();
        assert_eq!(again.documents[&first]["description"], "frozen");
    }

    #[test]
    fn a_name_of_an_event_type_that_has_a_document_is_read_for_ever() {
        let root = workspace(SHAPES);
        let known = ["events/tank/TankPainted.1.json", "events/boat/BoatBuilt.1.json"];
        let known = known.map(|path| (PathBuf::from(path), json!({})));
        let Stored { documents, problems } =
            collect::<Tanks>(root.path(), &Documents::from(known.clone())).unwrap();
        // The application of boats was deleted.
        let [problem] = &problems[..] else { panic!("{problems:?}") };
        let expected =
            "docs/schemas/events/tank/TankPainted.1.json has the event type `TankPainted`";
        assert!(problem.starts_with(expected), "{problem}");
        assert!(problem.contains("\"Rename an event type\""), "{problem}");
        assert_eq!(collect::<Tanks>(root.path(), &documents).unwrap().problems, [""; 0]);
    }

    #[test]
    fn a_shape_that_does_not_fit_and_rows_of_no_type_are_problems() {
        let root = workspace(&SHAPES.replace(r#""amount": 5000"#, r#""amount": "5000""#));
        fs::write(root.path().join("crates/apps/water/model/shapes/rows/levels.json"), "[]")
            .unwrap();
        let problems =
            collect::<Tanks>(root.path(), &Documents::new()).unwrap().problems.join("\n");
        assert!(
            problems.contains(
                "events/tank/TankFilled.1.json: a stored shape does not fit: at \
                    '/amount': want integer"
            ),
            "{problems}"
        );
        assert!(problems.contains("shapes/rows/levels.json has rows of no type"), "{problems}");
    }
}
