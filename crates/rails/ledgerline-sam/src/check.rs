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
    grants::{self, resources},
    template::Source,
};

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
    let template = source.template(&BTreeMap::new(), "http://127.0.0.1")?;
    let binaries: Vec<_> = template.functions.iter().map(|function| function.binary.as_str()).collect();
    manifests(&crate::build::build(root, &binaries)?)
}

/// All problems of a template: differences from the manifests of its functions, missing safeguards,
/// alarms that lack or cannot go off, and rights that no function may have. Each is one sentence with
/// its place. `runbook` is the text with an entry for each alarm.
///
/// # Errors
/// When the template has no resources.
pub fn problems(source: &Source, manifests: &Manifests, runbook: &str) -> Vec<String> {
    // The local stack could not run a template that it cannot read.
    let unread = source.template(&BTreeMap::new(), "http://127.0.0.1").err();
    [
        unread.map(|error| error.to_string()).into_iter().collect(),
        wiring(source, manifests),
        hardening::problems(source),
        alarms::problems(source, manifests, runbook),
        rights(source),
    ]
    .concat()
}

/// The differences between the manifests of functions and what the template gives them.
#[must_use]
pub fn wiring(source: &Source, manifests: &Manifests) -> Vec<String> {
    let json = source.json();
    let template = Template::of(source, &json, manifests);
    [sources::problems(&template), tables::problems(&template), roles::problems(&template)].concat()
}

/// The rights that no function may have, in a template or in the output of SAM.
#[must_use]
pub fn rights(source: &Source) -> Vec<String> {
    let problems = grants::read(&source.json()).problems.into_iter();
    problems
        .map(|problem| format!("{}: {}", source.place(&["Resources", &problem.resource]), problem.message))
        .collect()
}

/// The lines by which a reconciler knows the subscribers: a function, its table as the template
/// names it, the table's keys, and the categories whose commits it takes.
#[must_use]
pub fn follower_lines(source: &Source, manifests: &Manifests) -> BTreeSet<String> {
    sources::follower_lines(&Template::of(source, &source.json(), manifests))
}

/// The template, and the manifests of its functions.
struct Template<'a> {
    source: &'a Source,
    json: &'a Value,
    functions: Vec<Function<'a>>,
}

/// A function of the template, and its manifest.
struct Function<'a> {
    /// Logical id.
    id: &'a str,
    properties: &'a Value,
    manifest: &'a Manifest,
}

impl<'t> Template<'t> {
    fn of(source: &'t Source, json: &'t Value, manifests: &'t Manifests) -> Self {
        let mut functions = Vec::new();
        for (id, resource) in resources(json, &["AWS::Serverless::Function"]) {
            let binary = resource["Metadata"]["BuildProperties"]["Binary"].as_str().unwrap_or_default();
            // A missing binary is reported by the build.
            let Some(manifest) = manifests.get(binary) else { continue };
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
    fn events(&self, kind: &'static str) -> impl Iterator<Item = (&'t str, &'t Value)> + use<'t> {
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
