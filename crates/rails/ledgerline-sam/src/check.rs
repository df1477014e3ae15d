//! The manifests of functions, compared with what the template gives them, in both directions. A
//! gap fails at the first request that uses it. A surplus is a right too many, an event that no
//! function takes, or a table that costs money.

mod alarms;
mod hardening;
mod roles;
mod sources;
mod tables;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use ledgerline::manifest::{Manifest, Manifests, Name};
use serde_json::Value;

use crate::{
    grants::{self, list, resources},
    template::Source,
    wire,
};

pub(crate) use self::roles::rights;

/// Asks functions for their manifests. The keys are the names of the functions, the values the paths of
/// their programs.
///
/// # Errors
/// When one cannot be run, or prints something else.
pub fn manifests(programs: &BTreeMap<String, PathBuf>) -> Result<Manifests> {
    let ask = |(name, program): (&String, &PathBuf)| {
        // The development binary is told which function it is, as Lambda tells every function.
        let output = Command::new(program).arg("--manifest").env("AWS_LAMBDA_FUNCTION_NAME", name).output();
        let output = output.with_context(|| format!("cannot run {}", program.display()))?;
        if !output.status.success() {
            bail!("{name} --manifest ended with {}", output.status);
        }
        let manifest = serde_json::from_slice(&output.stdout);
        Ok((name.clone(), manifest.with_context(|| format!("{name} --manifest prints something else"))?))
    };
    programs.iter().map(ask).collect()
}

/// Builds the functions of a template and asks them for their manifests.
///
/// # Errors
/// When they do not build, or as those of [`manifests`].
pub fn manifests_of(source: &Source, root: &Path) -> Result<Manifests> {
    // A template with stale lists has functions whose roles are not there yet.
    let json = source.json();
    let functions = resources(&json, &["AWS::Serverless::Function"]);
    let binaries: Vec<_> = functions.map(|(_, function)| binary(function)).collect();
    manifests(&crate::build::build(root, &binaries)?)
}

/// All problems of a template: differences from the manifests of its functions, missing safeguards,
/// alarms that lack or cannot go off, and rights that no function may have. Each is one sentence with
/// its place. `runbook` is the text with an entry for each alarm.
#[must_use]
pub fn problems(source: &Source, manifests: &Manifests, runbook: &str) -> Vec<String> {
    let (mut problems, source) = wired(source, manifests);
    // The local stack could not run a template that it cannot read.
    let unread = source.template(&BTreeMap::new(), "http://127.0.0.1").err();
    problems.extend(unread.map(|error| error.to_string()));
    problems.extend(compared(&source, manifests));
    problems.extend(ungrouped(&source));
    problems.extend(hardening::problems(&source));
    problems.extend(alarms::problems(&source, manifests, runbook));
    problems.extend(rights_of_nobody(&source));
    problems
}

/// The differences between the manifests of functions and what the template gives them.
#[must_use]
pub fn wiring(source: &Source, manifests: &Manifests) -> Vec<String> {
    let (problems, source) = wired(source, manifests);
    [problems, compared(&source, manifests)].concat()
}

/// The generated blocks that are not as the manifests say, and the template with all of them
/// written. The rest of the check reads that template: what follows from a stale block is no
/// problem of its own.
fn wired(source: &Source, manifests: &Manifests) -> (Vec<String>, Source) {
    match wire::wire(source, manifests) {
        Ok(wire::Wired { source: wired, stale }) => {
            let problem = |(line, name): (usize, String)| {
                let place = source.line(line);
                format!("{place}: the generated block `{name}` differs from the manifests: {WIRE}")
            };
            (stale.into_iter().map(problem).collect(), wired)
        }
        Err(error) => (vec![error.to_string()], source.clone()),
    }
}

/// What to do about a difference that a command mends.
const WIRE: &str = "run `cargo xtask wire`";

fn compared(source: &Source, manifests: &Manifests) -> Vec<String> {
    let json = source.json();
    let template = Template::of(source, &json, manifests);
    let binaries = resources(&json, &["AWS::Serverless::Function"]).map(|(_, function)| binary(function));
    let binaries: BTreeSet<_> = binaries.collect();
    let unknown = binaries.iter().filter(|binary| !manifests.contains_key(**binary));
    let unknown = unknown.map(|binary| format!("`{binary}` has no manifest: {WIRE}"));
    let left = manifests.keys().filter(|binary| !binaries.contains(binary.as_str()));
    let left = left
        .map(|binary| format!("no function of the template runs `{binary}`, which has a manifest: {WIRE}"));
    let mut problems: Vec<_> = unknown.chain(left).collect();
    problems.extend(sources::problems(&template));
    problems.extend(tables::problems(&template));
    problems.extend(roles::problems(&template));
    problems
}

/// Parameters that the console shows behind all others, because no group names them. A template may
/// have no groups.
fn ungrouped(source: &Source) -> Vec<String> {
    let json = source.json();
    let groups = &json["Metadata"]["AWS::CloudFormation::Interface"]["ParameterGroups"];
    let groups = list(groups).into_iter().flat_map(|group| list(&group["Parameters"]));
    let grouped: BTreeSet<_> = groups.filter_map(Value::as_str).collect();
    let parameters = json["Parameters"].as_object().into_iter().flatten().map(|(name, _)| name);
    let missing = parameters.filter(|name| !grouped.is_empty() && !grouped.contains(name.as_str()));
    let problem = |name: &String| {
        let place = source.place(&["Parameters", name]);
        format!("{place}: {name}: no group of AWS::CloudFormation::Interface has the parameter")
    };
    missing.map(problem).collect()
}

/// The name of a function's binary.
fn binary(function: &Value) -> &str {
    function["Metadata"]["BuildProperties"]["Binary"].as_str().unwrap_or_default()
}

/// The rights that no function may have, in a template or in the output of SAM.
#[must_use]
pub fn rights_of_nobody(source: &Source) -> Vec<String> {
    let problems = grants::read(&source.json()).problems.into_iter();
    problems
        .map(|problem| format!("{}: {}", source.place(&["Resources", &problem.resource]), problem.message))
        .collect()
}

/// The template, and the manifests of its functions.
pub(crate) struct Template<'a> {
    source: &'a Source,
    json: &'a Value,
    pub(crate) functions: Vec<Function<'a>>,
}

/// A function of the template, and its manifest.
pub(crate) struct Function<'a> {
    /// Logical id.
    pub(crate) id: &'a str,
    pub(crate) properties: &'a Value,
    pub(crate) manifest: &'a Manifest,
}

impl<'t> Template<'t> {
    pub(crate) fn of(source: &'t Source, json: &'t Value, manifests: &'t Manifests) -> Self {
        let mut functions = Vec::new();
        for (id, resource) in resources(json, &["AWS::Serverless::Function"]) {
            // A missing manifest is a problem of its own.
            let Some(manifest) = manifests.get(binary(resource)) else { continue };
            functions.push(Function { id, properties: &resource["Properties"], manifest });
        }
        Self { source, json, functions }
    }

    /// A problem with a function: its place, which is the closest of these keys below the
    /// function's properties, and what is wrong.
    fn problem(&self, function: &str, keys: &[&str], message: &str) -> String {
        let path = [&["Resources", function, "Properties"], keys].concat();
        format!("{}: {function}: {message}", self.source.place(&path))
    }

    /// Whether a resource is written out, and not made by a loop.
    pub(crate) fn is_written(&self, id: &str) -> bool {
        self.source.is_written(id)
    }

    /// The line by which the reconciler knows a subscriber: the function, its table as the template
    /// names it, the table's keys, and the categories whose commits it takes.
    pub(crate) fn follower_line(&self, function: &Function<'_>) -> Option<String> {
        let subscriber = function.manifest.subscriber.as_ref()?;
        let id = tables::named(self, function, &subscriber.table)?;
        let table = function.manifest.table_of(&subscriber.table)?;
        let sort = table.sort.as_deref().unwrap_or("-");
        let of: Vec<_> = function.manifest.categories().into_iter().collect();
        Some(format!("{} ${{{id}}} {} {sort} {}", function.id, table.partition, of.join(" ")))
    }

    /// The type of a resource.
    fn kind(&self, id: &str) -> &'t str {
        self.json["Resources"][id]["Type"].as_str().unwrap_or_default()
    }

    /// The value of a function's variable: the function's own, or that of all functions.
    fn variable(&self, function: &Function<'t>, name: &str) -> Option<&'t Value> {
        let json: &'t Value = self.json;
        let globals = &json["Globals"]["Function"];
        [function.properties, globals].into_iter().find_map(|node| node["Environment"]["Variables"].get(name))
    }
}

impl<'t> Function<'t> {
    /// The function's events of this type: names and properties.
    pub(crate) fn events(&self, kind: &'static str) -> impl Iterator<Item = (&'t str, &'t Value)> + use<'t> {
        let events = self.properties["Events"].as_object().into_iter().flatten();
        events
            .filter(move |(_, event)| event["Type"] == kind)
            .map(|(name, event)| (name.as_str(), &event["Properties"]))
    }
}

/// The logical ids that an `Fn::Sub` refers to.
fn substituted(value: &Value) -> impl Iterator<Item = &str> {
    let text = value["Fn::Sub"].as_str().unwrap_or_default();
    text.split("${").skip(1).filter_map(|rest| rest.split('}').next())
}

/// Names with commas between them, for a sentence.
fn listed<'a>(names: impl IntoIterator<Item = &'a Name>) -> String {
    names.into_iter().map(|name| &**name).collect::<Vec<_>>().join(", ")
}
