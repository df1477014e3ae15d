//! The versions of functions to which events come, and the way back to those of before a deployment.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use clap::Args;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{
    Out, Writing,
    deployment::Deployment,
    records::{self, Record},
};

/// The name of the alias that events come to.
const LIVE: &str = "live";

/// Where the functions go back to.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// A file with what `ledger versions --json` printed before the deployment.
    #[arg(long, required_unless_present = "before", conflicts_with = "before")]
    to: Option<PathBuf>,
    /// The highest version from before this time, of each function whose version is younger: the time when the deployment began.
    #[arg(long)]
    before: Option<Timestamp>,
    #[command(flatten)]
    writing: Writing,
}

/// A function, by its logical id, and the version to which events come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Live {
    function: String,
    version: String,
}

/// The versions to which events come, by the logical ids of the functions.
async fn live(deployment: &Deployment) -> Result<BTreeMap<String, String>> {
    if deployment.is_local {
        bail!("the local stack has one version of each function, the newest");
    }
    let mut versions = BTreeMap::new();
    for (id, name) in deployment.of_type("AWS::Lambda::Function") {
        let version = deployment.lambda.get_function_configuration().function_name(format!("{name}:{LIVE}"));
        let version = version.send().await.with_context(|| format!("the alias {LIVE} of {id}"))?;
        versions.insert(id.to_owned(), version.version.unwrap_or_default());
    }
    Ok(versions)
}

/// Prints them.
pub(crate) async fn list(deployment: &Deployment, out: Out) -> Result<()> {
    let live = live(deployment).await?.into_iter();
    let rows: Vec<_> =
        live.map(|(function, version)| json!({ "function": function, "version": version })).collect();
    out.rows(&["function", "version"], &rows);
    Ok(())
}

/// Lets events come to the versions of before. Returns whether all of them do, or nothing was to be done.
pub(crate) async fn go_back(deployment: &Deployment, options: &Options, out: Out) -> Result<bool> {
    let live = live(deployment).await?;
    let wanted = match (&options.to, options.before) {
        (Some(file), _) => written_down(file)?,
        (None, Some(before)) => from_before(deployment, &live, before).await?,
        (None, None) => bail!("say --to or --before"),
    };
    let moves: Vec<_> = wanted
        .into_iter()
        .filter_map(|Live { function, version }| {
            let from = live.get(&function)?.clone();
            (from != version).then_some((function, from, version))
        })
        .collect();
    let rows: Vec<_> = moves
        .iter()
        .map(|(function, from, to)| json!({ "function": function, "from": from, "to": to }))
        .collect();
    out.rows(&["function", "from", "to"], &rows);
    if moves.is_empty() {
        out.note("\nevery function is there already");
        return Ok(true);
    }
    if !options.writing.write {
        return Ok(true);
    }
    let what = format!("go back with {} functions", moves.len());
    if !options.writing.is_agreed(&format!("{what}?"))? {
        return Ok(false);
    }
    let (why, detail) = (options.writing.why.clone(), json!(rows));
    records::keep_if_possible(deployment, Record { kind: "go-back", what, why, detail }).await?;
    let moves = moves.into_iter().map(|(function, _, version)| Live { function, version });
    move_all(deployment, moves.collect()).await
}

/// Publishes a version of each function as it is configured now, and lets events come to it.
pub(crate) async fn publish(deployment: &Deployment, writing: &Writing, out: Out) -> Result<bool> {
    let live = live(deployment).await?;
    let what = format!("publish {} functions", live.len());
    if !writing.write {
        out.note(&format!("it would {what}, and let events come to them: say --write and --why"));
        return Ok(true);
    }
    if !writing.is_agreed(&format!("{what}?"))? {
        return Ok(false);
    }
    let (why, detail) = (writing.why.clone(), json!(live));
    records::keep_if_possible(deployment, Record { kind: "publish", what, why, detail }).await?;
    let mut published = Vec::new();
    for function in live.into_keys() {
        let (name, _) = deployment.function(&function).with_context(|| format!("{function} is gone"))?;
        // A function that has not changed since its last version gets no new one: AWS gives that again.
        let version = deployment.lambda.publish_version().function_name(name).send().await;
        let version = version.with_context(|| format!("{function} is not published"))?.version;
        published.push(Live { function, version: version.unwrap_or_default() });
    }
    let rows: Vec<_> = published.iter().map(|live| json!(live)).collect();
    out.rows(&["function", "version"], &rows);
    move_all(deployment, published).await
}

/// Moves the aliases, each with all of its events. Returns whether all were moved; those that were not are named.
async fn move_all(deployment: &Deployment, moves: Vec<Live>) -> Result<bool> {
    let mut is_done = true;
    for Live { function, version } in moves {
        let (name, _) = deployment.function(&function).with_context(|| format!("{function} is gone"))?;
        // A deployment in steps leaves a part of the events to another version: that ends here.
        let routing = aws_sdk_lambda::types::AliasRoutingConfiguration::builder()
            .set_additional_version_weights(Some(std::collections::HashMap::new()))
            .build();
        let update = deployment.lambda.update_alias().function_name(name).name(LIVE);
        if let Err(error) = update.function_version(&version).routing_config(routing).send().await {
            is_done = false;
            eprintln!("{function} stays where it is: {:#}", anyhow::Error::from(error));
        }
    }
    Ok(is_done)
}

/// What somebody wrote down, a function a line.
fn written_down(file: &Path) -> Result<Vec<Live>> {
    let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let read = |(place, line): (usize, &str)| {
        serde_json::from_str(line).with_context(|| format!("{}:{}", file.display(), place + 1))
    };
    text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()).map(read).collect()
}

/// Of each function whose version is of this time or younger: its highest version from before.
async fn from_before(
    deployment: &Deployment,
    live: &BTreeMap<String, String>,
    before: Timestamp,
) -> Result<Vec<Live>> {
    let mut found = Vec::new();
    for (id, now) in live {
        let (name, _) = deployment.function(id).with_context(|| format!("{id} is gone"))?;
        let list = deployment.lambda.list_versions_by_function().function_name(name);
        let mut items = list.into_paginator().items().send();
        let mut versions = BTreeMap::new();
        while let Some(version) = items.next().await {
            let version = version.with_context(|| format!("the versions of {id}"))?;
            let number = version.version().and_then(|number| number.parse::<u64>().ok());
            if let (Some(number), Some(at)) = (number, version.last_modified().and_then(modified)) {
                versions.insert(number, at);
            }
        }
        if let Some(version) = highest_before(&versions, now, before) {
            found.push(Live { function: id.clone(), version: version.to_string() });
        }
    }
    Ok(found)
}

/// Lambda writes an offset without a colon: 2026-11-23T10:00:00.000+0000.
fn modified(text: &str) -> Option<Timestamp> {
    text.parse().ok().or_else(|| Timestamp::strptime("%Y-%m-%dT%H:%M:%S%.f%z", text).ok())
}

/// The highest version from before a time, if the one that is live is not.
fn highest_before(versions: &BTreeMap<u64, Timestamp>, live: &str, before: Timestamp) -> Option<u64> {
    let live = versions.get(&live.parse().ok()?)?;
    if *live < before {
        return None;
    }
    versions.iter().rev().find(|(_, at)| **at < before).map(|(number, _)| *number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_before_a_deployment_is_the_highest_that_is_older() {
        let versions: BTreeMap<_, _> = [
            (1, "2026-11-20T10:00:00.000+0000"),
            (2, "2026-11-22T10:00:00.000+0000"),
            (3, "2026-11-23T10:00:00.123+0000"),
        ]
        .map(|(number, at)| (number, modified(at).unwrap()))
        .into();
        let before = "2026-11-23T09:00:00Z".parse().unwrap();
        for (live, expected) in [("3", Some(2)), ("2", None), ("1", None), ("9", None), ("$LATEST", None)] {
            assert_eq!(highest_before(&versions, live, before), expected, "{live}");
        }
        assert_eq!(highest_before(&versions, "3", "2026-11-19T00:00:00Z".parse().unwrap()), None);
    }

    #[test]
    fn what_was_written_down_is_read_and_a_wrong_line_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("live.jsonl");
        fs::write(&file, "{\"function\":\"FanoutFunction\",\"version\":\"7\"}\n\n").unwrap();
        let expected = Live { function: "FanoutFunction".into(), version: "7".into() };
        assert_eq!(written_down(&file).unwrap(), [expected]);
        fs::write(&file, "FanoutFunction 7\n").unwrap();
        assert!(written_down(&file).unwrap_err().to_string().ends_with("live.jsonl:1"));
    }
}
