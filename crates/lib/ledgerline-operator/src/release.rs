//! Releases: the live version of each function, rollbacks to earlier versions, and new versions.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use aws_sdk_lambda::types::AliasRoutingConfiguration;
use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{
    Output, WriteArgs,
    deployment::{Deployment, LIVE},
    records::{self, Record},
};

/// The subcommands of `ledger release`.
#[derive(Debug, Subcommand)]
pub(crate) enum Release {
    /// List the live version of each function. Save the output of --json before a deployment.
    List,
    /// Roll back every function to the version that was live before a deployment.
    ///
    /// Builds nothing and changes no data. Without --write, print the versions.
    Rollback(RollbackArgs),
    /// Publish a version of each function as it is configured, and make it live.
    ///
    /// Needed after a deployment that changed only the settings of all functions.
    Promote(WriteArgs),
}

/// The options of `ledger release rollback`.
#[derive(Debug, Args)]
pub(crate) struct RollbackArgs {
    /// Roll back to the versions in this file, the output of `ledger release list --json` from
    /// before the deployment.
    #[arg(long, required_unless_present = "before", conflicts_with = "before")]
    to: Option<PathBuf>,
    /// Roll back to the versions of this time, at which the deployment began. A function with a
    /// younger live version gets its highest version from before this time.
    #[arg(long)]
    before: Option<Timestamp>,
    #[command(flatten)]
    write_args: WriteArgs,
}

/// A function, by its logical id, and its live version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct LiveVersion {
    function: String,
    version: String,
}

/// The alias of a function.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Alias {
    version: String,
    /// Whether a part of the events goes to another version, as in a canary deployment.
    is_split: bool,
}

/// Returns the aliases, by the logical ids of the functions.
async fn live_aliases(deployment: &Deployment) -> Result<BTreeMap<String, Alias>> {
    if deployment.is_local {
        bail!("the local stack has one version of each function, the newest");
    }
    let mut aliases = BTreeMap::new();
    for (id, name) in deployment.resources_of_type("AWS::Lambda::Function") {
        let alias = deployment.lambda.get_alias().function_name(name).name(LIVE).send().await;
        let alias = alias.with_context(|| format!("the alias {LIVE} of {id}"))?;
        let weights = alias.routing_config.and_then(|routing| routing.additional_version_weights);
        let is_split = weights.is_some_and(|weights| !weights.is_empty());
        let version = alias.function_version.unwrap_or_default();
        aliases.insert(id.to_owned(), Alias { version, is_split });
    }
    Ok(aliases)
}

/// Runs the subcommand. Returns `false` if a function does not get the wanted version, or the
/// operator declines.
pub(crate) async fn run(deployment: &Deployment, release: &Release, out: Output) -> Result<bool> {
    match release {
        Release::List => list(deployment, out).await.map(|()| true),
        Release::Rollback(options) => roll_back(deployment, options, out).await,
        Release::Promote(write_args) => promote(deployment, write_args, out).await,
    }
}

/// Prints the live versions.
async fn list(deployment: &Deployment, out: Output) -> Result<()> {
    let row = |(function, Alias { version, is_split: _ })| json!(LiveVersion { function, version });
    let rows: Vec<_> = live_aliases(deployment).await?.into_iter().map(row).collect();
    out.rows(&["function", "version"], &rows);
    Ok(())
}

/// Makes earlier versions live. Returns `false` if a function keeps another version, or the
/// operator declines.
async fn roll_back(deployment: &Deployment, options: &RollbackArgs, out: Output) -> Result<bool> {
    let live = live_aliases(deployment).await?;
    let (wanted, cannot) = match (&options.to, options.before) {
        (Some(file), _) => (read_versions(file)?, Vec::new()),
        (None, Some(before)) => versions_before(deployment, &live, before).await?,
        (None, None) => bail!("choose the versions: --to or --before"),
    };
    let moves = choose_moves(wanted, &live)?;
    let row = |LiveVersion { function, version }: &LiveVersion| json!({ "function": function, "from": live[function].version, "to": version });
    let rows: Vec<_> = moves.iter().map(row).collect();
    out.rows(&["function", "from", "to"], &rows);
    for function in &cannot {
        eprintln!("`{function}` has no version from before that time, and keeps its version");
    }
    if moves.is_empty() {
        out.note("\nevery function has the wanted version");
        return Ok(cannot.is_empty());
    }
    if !options.write_args.write {
        return Ok(cannot.is_empty());
    }
    let what = format!("roll back {} functions", moves.len());
    if !options.write_args.confirm(&format!("{what}?"))? {
        return Ok(false);
    }
    let why = options.write_args.why();
    let detail = json!(rows);
    records::store_if_possible(deployment, Record { kind: "release rollback", what, why, detail })
        .await?;
    Ok(move_all(deployment, moves).await? && cannot.is_empty())
}

/// Returns the functions whose alias names another version, or splits the events between two.
fn choose_moves(
    wanted: Vec<LiveVersion>,
    live: &BTreeMap<String, Alias>,
) -> Result<Vec<LiveVersion>> {
    let mut moves = Vec::new();
    for wanted in wanted {
        let now = live.get(&wanted.function);
        let now = now.with_context(|| {
            format!(
                "this stack has no function `{}`: check that the list is of this stack",
                wanted.function
            )
        })?;
        if now.version != wanted.version || now.is_split {
            moves.push(wanted);
        }
    }
    Ok(moves)
}

/// Publishes a version of each function as it is configured, and makes it live.
async fn promote(deployment: &Deployment, write_args: &WriteArgs, out: Output) -> Result<bool> {
    let live = live_aliases(deployment).await?;
    let what = format!("publish {} functions", live.len());
    if !write_args.write {
        out.note(&format!("to {what} and make the new versions live, give --write and --why"));
        return Ok(true);
    }
    if !write_args.confirm(&format!("{what}?"))? {
        return Ok(false);
    }
    let versions: BTreeMap<_, _> =
        live.iter().map(|(function, alias)| (function, &alias.version)).collect();
    let why = write_args.why();
    let detail = json!(versions);
    records::store_if_possible(deployment, Record { kind: "release promote", what, why, detail })
        .await?;
    let mut published = Vec::new();
    for function in live.into_keys() {
        let name = &deployment.function(&function)?.name;
        // AWS publishes no new version of an unchanged function, and returns its last one.
        let version = deployment.lambda.publish_version().function_name(name).send().await;
        let version = version.with_context(|| format!("`{function}` is not published"))?.version;
        published.push(LiveVersion { function, version: version.unwrap_or_default() });
    }
    let rows: Vec<_> = published.iter().map(|live| json!(live)).collect();
    out.rows(&["function", "version"], &rows);
    move_all(deployment, published).await
}

/// Moves the aliases, each with all of its events. Returns whether all moves succeeded, and prints
/// the functions whose moves failed.
async fn move_all(deployment: &Deployment, moves: Vec<LiveVersion>) -> Result<bool> {
    let mut is_done = true;
    for LiveVersion { function, version } in moves {
        let name = &deployment.function(&function)?.name;
        // A canary deployment sends a part of the events to another version. The update stops that.
        let routing = AliasRoutingConfiguration::builder()
            .set_additional_version_weights(Some(HashMap::new()))
            .build();
        let update = deployment.lambda.update_alias().function_name(name).name(LIVE);
        if let Err(error) = update.function_version(&version).routing_config(routing).send().await {
            is_done = false;
            eprintln!("`{function}` keeps its version: {:#}", anyhow::Error::from(error));
        }
    }
    Ok(is_done)
}

/// Reads a saved list of versions, one function per line.
fn read_versions(file: &Path) -> Result<Vec<LiveVersion>> {
    let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let read = |(place, line): (usize, &str)| {
        serde_json::from_str(line).with_context(|| format!("{}:{}", file.display(), place + 1))
    };
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let list: Vec<_> = lines.map(read).collect::<Result<_>>()?;
    if list.is_empty() {
        bail!("{} names no function", file.display());
    }
    Ok(list)
}

/// Returns the version of each function from before this time, as [`version_before`] chooses it. Also
/// returns the functions without such a version.
async fn versions_before(
    deployment: &Deployment,
    live: &BTreeMap<String, Alias>,
    before: Timestamp,
) -> Result<(Vec<LiveVersion>, Vec<String>)> {
    let (mut found, mut cannot) = (Vec::new(), Vec::new());
    for (id, alias) in live {
        let list = deployment
            .lambda
            .list_versions_by_function()
            .function_name(&deployment.function(id)?.name);
        let mut items = list.into_paginator().items().send();
        let mut versions = BTreeMap::new();
        while let Some(version) = items.next().await {
            let version = version.with_context(|| format!("the versions of {id}"))?;
            let number = version.version().and_then(|number| number.parse::<u64>().ok());
            if let (Some(number), Some(at)) = (number, version.last_modified().and_then(parse_time))
            {
                versions.insert(number, at);
            }
        }
        let function = id.clone();
        match version_before(&versions, &alias.version, before) {
            Some(number) => found.push(LiveVersion { function, version: number.to_string() }),
            None => cannot.push(function),
        }
    }
    Ok((found, cannot))
}

/// Parses a time of Lambda. Its offset has no colon: 2026-11-23T10:00:00.000+0000.
fn parse_time(text: &str) -> Option<Timestamp> {
    text.parse().ok().or_else(|| Timestamp::strptime("%Y-%m-%dT%H:%M:%S%.f%z", text).ok())
}

/// Returns the live version if it is from before a time, or else the highest version from before
/// it.
fn version_before(
    versions: &BTreeMap<u64, Timestamp>,
    live: &str,
    before: Timestamp,
) -> Option<u64> {
    let number = live.parse().ok().filter(|live| versions.get(live).is_some_and(|at| *at < before));
    let highest = || versions.iter().rev().find(|(_, at)| **at < before).map(|(number, _)| *number);
    number.or_else(highest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rollback_by_time_takes_the_live_version_or_the_highest_older_one() {
        let versions: BTreeMap<_, _> = [
            (1, "2026-11-20T10:00:00.000+0000"),
            (2, "2026-11-22T10:00:00.000+0000"),
            (3, "2026-11-23T10:00:00.123+0000"),
        ]
        .map(|(number, at)| (number, parse_time(at).unwrap()))
        .into();
        let before = "2026-11-23T09:00:00Z".parse().unwrap();
        for (live, expected) in [("3", 2), ("2", 2), ("1", 1), ("9", 2), ("$LATEST", 2)] {
            assert_eq!(version_before(&versions, live, before), Some(expected), "{live}");
        }
        assert_eq!(version_before(&versions, "3", "2026-11-19T00:00:00Z".parse().unwrap()), None);
    }

    #[test]
    fn a_saved_list_of_versions_is_read_and_a_wrong_line_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("live.jsonl");
        fs::write(&file, "{\"function\":\"FanoutFunction\",\"version\":\"7\"}\n\n").unwrap();
        let expected = LiveVersion { function: "FanoutFunction".into(), version: "7".into() };
        assert_eq!(read_versions(&file).unwrap(), [expected]);
        fs::write(&file, "\n").unwrap();
        assert!(read_versions(&file).unwrap_err().to_string().ends_with("names no function"));
        fs::write(&file, "FanoutFunction 7\n").unwrap();
        assert!(read_versions(&file).unwrap_err().to_string().ends_with("live.jsonl:1"));
    }

    #[test]
    fn a_function_is_rolled_back_if_its_alias_differs_and_a_foreign_list_is_refused() {
        let alias = |version: &str, is_split| Alias { version: version.into(), is_split };
        let live = BTreeMap::from([
            ("A".to_owned(), alias("7", false)),
            ("B".to_owned(), alias("7", true)),
            ("C".to_owned(), alias("8", false)),
        ]);
        let to = |function: &str| LiveVersion { function: function.into(), version: "7".into() };
        assert_eq!(
            choose_moves(vec![to("A"), to("B"), to("C")], &live).unwrap(),
            [to("B"), to("C")]
        );
        assert!(
            choose_moves(vec![to("A"), to("D")], &live)
                .unwrap_err()
                .to_string()
                .contains("no function `D`")
        );
    }
}
