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
use ledgerline::manifest::{Manifest, Manifests};
use serde_json::Value;

use crate::{
    functions::{Template, binary},
    grants::{self, list, resources},
    template::Source,
    wire,
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
        let manifest: Manifest = serde_json::from_slice(&output.stdout)
            .with_context(|| format!("{name} --manifest prints something else"))?;
        manifest.validate().with_context(|| format!("the manifest of `{name}`"))?;
        Ok((name.clone(), manifest))
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
    let mut binaries = Vec::new();
    for (id, function) in functions {
        if binary(function).is_empty() {
            bail!("{}: {id} needs Metadata.BuildProperties.Binary", source.place(&["Resources", id]));
        }
        binaries.push(binary(function));
    }
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
    let binaries: BTreeSet<_> = binaries.filter(|binary| !binary.is_empty()).collect();
    let unknown = binaries.iter().filter(|binary| !manifests.contains_key(**binary));
    let unknown = unknown.map(|binary| format!("`{binary}` has no manifest: {WIRE}"));
    let left = manifests.keys().filter(|binary| !binaries.contains(binary.as_str()));
    let left = left
        .map(|binary| format!("no function of the template runs `{binary}`, which has a manifest: {WIRE}"));
    let mut problems: Vec<_> = unknown.chain(left).collect();
    problems.extend(deployed(source, &json, manifests));
    problems.extend(urls(source, &template));
    problems.extend(sources::problems(&template));
    problems.extend(tables::problems(&template));
    problems.extend(roles::problems(&template));
    problems
}

/// Manifests in the metadata that differ from those of the functions: the operator's tool would go by
/// them in an incident.
fn deployed(source: &Source, json: &Value, manifests: &Manifests) -> Option<String> {
    if json["Metadata"]["Ledgerline"].is_null() {
        return None;
    }
    let is_same = wire::in_template(json).is_ok_and(|deployed| deployed.as_ref() == Some(manifests));
    let place = source.place(&["Metadata", "Ledgerline", "Manifests"]);
    (!is_same)
        .then(|| format!("{place}: the manifests in Metadata.Ledgerline differ from manifest.json: {WIRE}"))
}

/// Differences of the loop over URLs from the functions that get one: a URL has no scopes, so a function
/// that shows the commits of all streams must have none.
fn urls(source: &Source, template: &Template<'_>) -> Vec<String> {
    const URLS: &str = "Urls";
    let Some(written) = source.names_of_loop(URLS) else { return Vec::new() };
    let wanted = wire::names(template, URLS).unwrap_or_default();
    let place = source.place(&["Resources"]);
    let missing = wanted.iter().filter(|name| !written.contains(name));
    let missing = missing.map(|name| format!("{place}: the loop {URLS} lacks {name}"));
    let surplus = written.iter().filter(|name| !wanted.contains(name));
    let surplus =
        surplus.map(|name| format!("{place}: the loop {URLS} has {name}, which gets no URL: take it away"));
    missing.chain(surplus).collect()
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

/// The rights that no function may have, in a template or in the output of SAM.
#[must_use]
pub fn rights_of_nobody(source: &Source) -> Vec<String> {
    let problems = grants::read(&source.json()).problems.into_iter();
    problems
        .map(|problem| format!("{}: {}", source.place(&["Resources", &problem.resource]), problem.message))
        .collect()
}
