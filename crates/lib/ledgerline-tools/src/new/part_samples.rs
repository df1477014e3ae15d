//! Sample events for functions, and their answers. They are copies of the starter's samples, with
//! other names and the values of other aggregates.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use ledgerline::manifest::{Endpoint, Manifest, Manifests, Scope, Source};
use ledgerline_sam::sample_events::{ANSWERS, EVENTS, Step};
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    facts::Facts,
    names::{Names, upper_camel},
    starter::{self, AGGREGATE, APPLICATION, ON_BUS},
};

/// The id in the sample events.
const ID: &str = "163082d2-b005-45d7-9eb6-aa1f83efd55d";

/// The texts of a sample event and of its answers.
pub(super) struct Sample {
    pub(super) event: String,
    pub(super) answers: String,
}

/// Returns a sample of the starter.
pub(super) fn read_starter(names: &Names, function: &str, case: &str) -> Result<Sample> {
    let read = |folder: &str| {
        Ok::<_, anyhow::Error>(
            names.rename(starter::file(&format!("{folder}/{function}/{case}.json"))?),
        )
    };
    Ok(Sample { event: read(EVENTS)?, answers: read(ANSWERS)? })
}

/// Returns a sample of the starter with a changed event.
fn changed(
    names: &Names,
    function: &str,
    case: &str,
    change: impl FnOnce(&mut Value) -> Result<()>,
) -> Result<Sample> {
    let Sample { event, answers } = read_starter(names, function, case)?;
    let mut event = serde_json::from_str(&event)?;
    change(&mut event)?;
    Ok(Sample { event: pretty(&event)?, answers })
}

fn pretty(value: &impl Serialize) -> Result<String> {
    Ok(serde_json::to_string_pretty(value)? + "\n")
}

/// Returns the row of a state view.
pub(super) fn row(facts: &Facts) -> Value {
    let mut row = facts.state.clone();
    row["id"] = json!(ID);
    row["version"] = json!(1);
    row
}

/// Returns a sample of the states that the fanout sends to a state projector.
pub(super) fn state(names: &Names, facts: &Facts) -> Result<Sample> {
    changed(names, "stock-cards-projector", "changed", |event| {
        set_state(&mut event["states"][0], facts);
        Ok(())
    })
}

/// Returns a sample of the event that the bus sends to a state projector.
pub(super) fn entry(names: &Names, facts: &Facts) -> Result<Sample> {
    changed(names, &format!("{ON_BUS}-projector"), "changed", |event| {
        event["detail-type"] = json!(facts.event);
        set_state(&mut event["detail"], facts);
        Ok(())
    })
}

/// Adds the `source` of the aggregate's events on the bus to the names.
pub(super) fn rename_event_source(names: Names, application: &str) -> Names {
    let category = names.rename("stockitem");
    names.text(&format!("{APPLICATION}.stockitem"), &format!("{application}.{category}"))
}

/// Puts the state of an aggregate and its last event into an event of the bus or an entry of the
/// fanout.
fn set_state(entry: &mut Value, facts: &Facts) {
    entry["aggregate"] = facts.state.clone();
    entry["aggregate"]["lastKnownVersion"] = json!(1);
    entry["aggregateSchema"] = facts.state_schema.clone();
    let last = &mut entry["lastEvent"];
    last["eventType"] = json!(facts.event);
    last["schema"] = facts.schema.clone();
    last["payload"] = facts.payload.clone();
}

/// Returns a sample message for a function behind a FIFO queue of commits. `function` is a function
/// of the starter.
pub(super) fn commit(names: &Names, function: &str, facts: &Facts) -> Result<Sample> {
    changed(names, function, "commit", |event| {
        let body = &mut event["Records"][0]["body"];
        let mut commit: Value =
            serde_json::from_str(body.as_str().context("a message has a body")?)?;
        let recorded = &mut commit["events"][0];
        recorded["type"] = json!(facts.event);
        recorded["schema"] = facts.schema.clone();
        recorded["data"] = json!(facts.payload.to_string());
        *body = json!(commit.to_string());
        Ok(())
    })
}

/// Writes samples for the functions and routes that have none, under the folder `root` of the
/// template. `scope` is the prefix of each scope. Overwrites nothing. Returns the paths of the
/// events.
pub(crate) fn write_missing(
    root: &Path,
    scope: &str,
    manifests: &Manifests,
) -> Result<Vec<PathBuf>> {
    let workspace = Workspace {
        scope,
        category: manifests.values().find_map(|manifest| manifest.categories().into_iter().next()),
    };
    let mut written = Vec::new();
    for (function, manifest) in manifests {
        let of_function = || format!("the samples of `{function}`");
        let known = Known::read(root, function).with_context(of_function)?;
        for (case, sample) in
            workspace.missing(function, manifest, &known).with_context(of_function)?
        {
            written.push(write_sample(root, function, &case, &sample)?);
        }
    }
    Ok(written)
}

/// Writes a sample, and overwrites nothing: if the name of a sample is taken, the new one gets a
/// number. Returns the path of the event.
fn write_sample(root: &Path, function: &str, case: &str, sample: &Sample) -> Result<PathBuf> {
    let paths = |name: &str| {
        [EVENTS, ANSWERS].map(|of| root.join(of).join(function).join(format!("{name}.json")))
    };
    let numbered = (2..).map(|number| format!("{case}-{number}"));
    let mut names = std::iter::once(case.to_owned()).chain(numbered).map(|name| paths(&name));
    let free = names.find(|paths| !paths.iter().any(|path| path.exists()));
    let [event, answers] = free.context("no name of a sample is free")?;
    for (path, text) in [(&answers, &sample.answers), (&event, &sample.event)] {
        fs::create_dir_all(path.parent().unwrap_or(root))?;
        fs::write(path, text).with_context(|| path.display().to_string())?;
    }
    Ok(event)
}

/// The data that all samples of a workspace share.
struct Workspace<'w> {
    /// The prefix of each scope.
    scope: &'w str,
    /// The category of one aggregate, if the workspace has one.
    category: Option<&'w str>,
}

/// The existing samples of a function.
#[derive(Default)]
struct Known {
    events: usize,
    routes: BTreeSet<String>,
    /// The highest step number in its answers.
    last: usize,
}

impl Known {
    fn read(root: &Path, function: &str) -> Result<Self> {
        let mut known = Self::default();
        for event in json_files(&root.join(EVENTS).join(function))? {
            known.events += 1;
            known.routes.extend(event["routeKey"].as_str().map(ToOwned::to_owned));
        }
        for answers in json_files(&root.join(ANSWERS).join(function))? {
            let steps: Vec<Step> =
                serde_json::from_value(answers).context("answers are a list of steps")?;
            known.last =
                steps.iter().map(|step| step.step).chain([known.last]).max().unwrap_or_default();
        }
        Ok(known)
    }
}

fn json_files(folder: &Path) -> Result<Vec<Value>> {
    let Ok(entries) = fs::read_dir(folder) else { return Ok(Vec::new()) };
    let paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        serde_json::from_str(&text).with_context(|| path.display().to_string())
    };
    paths
        .into_iter()
        .filter(|path| path.extension().is_some_and(|end| end == "json"))
        .map(read)
        .collect()
}

impl Workspace<'_> {
    /// Returns the samples that a function lacks, by their cases.
    fn missing(
        &self,
        function: &str,
        manifest: &Manifest,
        known: &Known,
    ) -> Result<Vec<(String, Sample)>> {
        let facts = |category: Option<&str>| {
            Facts::read(
                Path::new(""),
                category.context("the function applies the commits of no category")?,
            )
        };
        // The name of the function's queue.
        let name = function.strip_suffix("-projector").unwrap_or(function);
        let names = |category: &str| self.names(category).name("stock-journal", name);
        let one = |case: &str, sample: Result<Sample>| Ok(vec![(case.to_owned(), sample?)]);
        match &manifest.source {
            Source::Http(endpoints) => {
                let endpoints =
                    endpoints.iter().filter(|endpoint| !known.routes.contains(&*endpoint.route));
                let steps = known.last + 1..;
                endpoints
                    .zip(steps)
                    .map(|(endpoint, step)| request(endpoint, step, self.scope))
                    .collect()
            }
            _ if known.events > 0 => Ok(Vec::new()),
            Source::States { category, bus: true, .. } => {
                let names = rename_event_source(names(category), self.scope);
                one("changed", entry(&names, &facts(Some(category))?))
            }
            Source::States { category, bus: false, .. } => {
                one("changed", state(&names(category), &facts(Some(category))?))
            }
            Source::Queue(categories) => {
                let facts = facts(categories.iter().next().map(|category| &**category))?;
                one("commit", commit(&names(&facts.category), "stock-journal-projector", &facts))
            }
            Source::Stream => {
                let names = self.category.map(|category| self.names(category)).unwrap_or_default();
                one("commits", read_starter(&names, "fanout", "commits"))
            }
            Source::Sequence(_) => {
                one("again", read_starter(&Names::default(), "stock-diary-subscription", "again"))
            }
            // The sample of a sign-up has the attributes of the team's own user pool.
            Source::SignUp => Ok(Vec::new()),
            Source::Schedule => {
                one("again", read_starter(&Names::default(), "reconciler", "daily"))
            }
        }
    }

    /// Returns the names of the workspace, and those of an aggregate of which only the category is
    /// known.
    fn names(&self, category: &str) -> Names {
        let names = Names::default().text(APPLICATION, self.scope);
        names.aggregate(AGGREGATE, category, &upper_camel(category), category)
    }
}

/// Returns a sample request to a route, and its likely answer. A command with an empty body usually
/// gets 400; if not, the test of the samples says so.
fn request(endpoint: &Endpoint, step: usize, scope: &str) -> Result<(String, Sample)> {
    let (method, path) =
        endpoint.route.split_once(' ').context("a route is a method and a path")?;
    let names = Names::default().text(APPLICATION, scope);
    let (function, of) = if method == "GET" {
        ("stock-cards-queries", "get")
    } else {
        ("stock-item-commands", "rename")
    };
    let parameters = path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let parameters: Vec<_> = parameters.collect();
    let raw = parameters
        .iter()
        .fold(path.to_owned(), |raw, name| raw.replace(&format!("{{{name}}}"), ID));
    let mut sample = changed(&names, function, of, |event| {
        event["routeKey"] = json!(endpoint.route);
        event["requestContext"]["routeKey"] = json!(endpoint.route);
        event["requestContext"]["http"]["method"] = json!(method);
        event["requestContext"]["http"]["path"] = json!(raw);
        event["rawPath"] = json!(raw);
        let jwt = &mut event["requestContext"]["authorizer"]["jwt"];
        let scope = format!("{scope}/{}", endpoint.scope.as_str());
        jwt["claims"]["scope"] = json!(scope);
        jwt["scopes"] = json!([scope]);
        if endpoint.scope == Scope::Operate {
            jwt["claims"]["cognito:groups"] = json!("[operators]");
        }
        let fields = event.as_object_mut().context("an event has fields")?;
        fields.remove("pathParameters");
        if !parameters.is_empty() {
            let parameters = parameters.iter().map(|name| ((*name).to_owned(), json!(ID)));
            fields.insert("pathParameters".to_owned(), Value::Object(parameters.collect()));
        }
        if method != "GET" {
            fields.insert("body".to_owned(), json!("{}"));
        }
        Ok(())
    })?;
    let status = if method == "GET" { 200 } else { 400 };
    let answer = json!({ "statusCode": status });
    sample.answers = pretty(&[Step { step, about: format!("`{}`", endpoint.route), answer }])?;
    let case =
        path.split(['/', '{', '}']).filter(|part| !part.is_empty()).collect::<Vec<_>>().join("-");
    Ok((format!("{}-{case}", method.to_lowercase()).to_lowercase(), sample))
}
