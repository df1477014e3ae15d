//! The names of an aggregate of the workspace, and a sample event and state of it.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use ledgerline::{Aggregate, Aggregates, Visitor, categories};
use serde_json::Value;

/// The names of an aggregate in the code.
pub(super) struct Known {
    /// The application, with dashes.
    pub(super) application: String,
    /// The name of its module, with dashes.
    pub(super) name: String,
    /// The name of its type.
    pub(super) of_type: String,
}

impl Known {
    /// Returns the names of the aggregate with this category.
    pub(super) fn find<L: Aggregates>(category: &str) -> Result<Self> {
        struct Find<'a>(&'a str, Option<Known>);
        impl Visitor for Find<'_> {
            fn visit<A: Aggregate>(&mut self) {
                if A::CATEGORY == self.0 {
                    let path: Vec<_> = std::any::type_name::<A>().split("::").collect();
                    let [application, .., module, name] = path.as_slice() else { return };
                    self.1 = Some(Known {
                        application: application.replace('_', "-"),
                        name: module.replace('_', "-"),
                        of_type: (*name).to_owned(),
                    });
                }
            }
        }
        let mut find = Find(category, None);
        L::visit(&mut find);
        let known = categories::<L>().join(", ");
        find.1.with_context(|| {
            format!("no aggregate has the category `{category}`; choose one of: {known}")
        })
    }
}

/// A sample event and a sample state of an aggregate.
pub(crate) struct Facts {
    /// The category of the streams.
    pub(crate) category: String,
    /// The type of the event.
    pub(crate) event: String,
    /// The schema number of its payload.
    pub(crate) schema: Value,
    /// Its payload.
    pub(crate) payload: Value,
    /// The schema number of the state.
    pub(crate) state_schema: Value,
    /// The state.
    pub(crate) state: Value,
}

impl Facts {
    /// Reads the facts about an aggregate of the workspace `root` from its file of shapes.
    pub(crate) fn read(root: &Path, category: &str) -> Result<Self> {
        let applications = root.join("crates/apps");
        let folders =
            fs::read_dir(&applications).with_context(|| applications.display().to_string())?;
        let files =
            folders.map(|folder| Ok(folder?.path().join(format!("model/shapes/{category}.json"))));
        let files = files.collect::<Result<Vec<_>>>()?;
        let file = files.into_iter().find(|file| file.exists());
        let file = file.with_context(|| {
            format!("there is no crates/apps/<application>/model/shapes/{category}.json")
        })?;
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        Self::new(category, &text).with_context(|| file.display().to_string())
    }

    /// Returns the facts in a file of shapes: the newest shape of the first event, and the newest
    /// shape of the state.
    pub(super) fn new(category: &str, shapes: &str) -> Result<Self> {
        let shapes: Value = serde_json::from_str(shapes)?;
        let of = |kind: &str| shapes[kind].as_array().cloned().unwrap_or_default();
        let newest =
            |shapes: Vec<Value>| shapes.into_iter().max_by_key(|shape| shape["schema"].as_u64());
        let events = of("events");
        let first = events.first().context("it has no event")?["type"].clone();
        let event = newest(events.into_iter().filter(|event| event["type"] == first).collect());
        let event = event.context("it has no event")?;
        let state = newest(of("states")).context("it has no state")?;
        Ok(Self {
            category: category.to_owned(),
            event: first.as_str().context("the type of an event is a text")?.to_owned(),
            schema: event["schema"].clone(),
            payload: event["data"].clone(),
            state_schema: state["schema"].clone(),
            state: state["data"].clone(),
        })
    }
}
