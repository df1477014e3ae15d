//! The starter: a workspace with one application, `north-depot`, that has one part of each kind.
//! Every new part is a copy of a part of the starter, with other names. The starter is compiled and
//! tested by itself.
//!
//! Its manifests are named `_Cargo.toml`: cargo packages no folder that has a `Cargo.toml` of its
//! own.

use anyhow::{Context, Result};
use include_dir::{Dir, include_dir};

use super::runbook::RUNBOOK;

static STARTER: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/starter");

/// The name of the application.
pub(super) const APPLICATION: &str = "north-depot";
/// The folders of the application's packages: the model, the functions.
pub(super) const MODEL: &str = "crates/apps/north-depot/model";
pub(super) const FUNCTIONS: &str = "crates/apps/north-depot/functions";
/// The aggregate, and the aggregate that gets commands only from a process manager.
pub(super) const AGGREGATE: &str = "stock-item";
pub(super) const COMMANDED: &str = "price-tag";
/// The state view, and the state view that a query lists by a field of the rows.
pub(super) const STATES: &str = "stock-cards";
pub(super) const LISTED: &str = "stock-owners";
/// The state view that gets its states from a rule of the bus.
pub(super) const ON_BUS: &str = "stock-signs";
/// The log view that inserts a row for each event, and the log view that adds up.
pub(super) const LOG: &str = "stock-journal";
pub(super) const SUMS: &str = "stock-totals";
/// The view of a subscription.
pub(super) const ORDERED: &str = "stock-diary";
/// The process manager that reacts to commits, and the process manager that sends commands.
pub(super) const REACTS: &str = "stock-notices";
pub(super) const COMMANDS: &str = "stock-labels";

/// The file with the types from which a contract is made. No workspace has it.
pub(super) const CONTRACT: &str = "contract.json";

/// The file with the manifests of all functions, from which a template is made without a build. No
/// workspace has it.
pub(super) const MANIFESTS: &str = "manifest.json";

/// The parts that a workspace may lack, by the words in their paths and lines.
const PARTS: [&str; 13] = [
    AGGREGATE,
    COMMANDED,
    STATES,
    LISTED,
    ON_BUS,
    LOG,
    SUMS,
    ORDERED,
    REACTS,
    COMMANDS,
    "sequencer",
    "events-queries",
    "reconciler",
];

/// Returns the path in the starter of a workspace's file.
fn path_of(path: &str) -> String {
    match path.strip_suffix("Cargo.toml") {
        Some(folder) => format!("{folder}_Cargo.toml"),
        None => path.to_owned(),
    }
}

/// Returns the text of a file.
pub(super) fn file(path: &str) -> Result<&'static str> {
    let file = STARTER.get_file(path_of(path)).and_then(|file| file.contents_utf8());
    file.with_context(|| format!("the starter has no {path}"))
}

/// Returns the paths of all files, as a workspace has them.
pub(super) fn paths() -> Vec<String> {
    fn add(folder: &Dir<'_>, paths: &mut Vec<String>) {
        let files = folder.files().map(|file| file.path().display().to_string());
        paths
            .extend(files.map(|path| path.replace("_Cargo.toml", "Cargo.toml").replace('\\', "/")));
        folder.dirs().for_each(|folder| add(folder, paths));
    }
    let mut paths = Vec::new();
    add(&STARTER, &mut paths);
    paths.sort_unstable();
    paths
}

/// Returns the first line of a file that contains this text, without its indent.
pub(super) fn line(path: &str, text: &str) -> Result<&'static str> {
    let line = file(path)?.lines().find(|line| line.contains(text));
    Ok(line.with_context(|| format!("{path} of the starter has no line with {text}"))?.trim())
}

/// Returns the part of a file from the line that begins with `begins` up to the next line that
/// begins with one of `ends`.
pub(super) fn between(path: &str, begins: &str, ends: &[&str]) -> Result<&'static str> {
    cut(file(path)?, begins, ends)
        .with_context(|| format!("{path} of the starter has no line {begins}"))
}

/// Returns a part of a text, like [`between`].
pub(super) fn cut<'t>(text: &'t str, begins: &str, ends: &[&str]) -> Option<&'t str> {
    let start = if text.starts_with(begins) { 0 } else { text.find(&format!("\n{begins}"))? + 1 };
    let after = start + begins.len();
    let ends = ends.iter().filter_map(|ends| text[after..].find(&format!("\n{ends}")));
    Some(&text[start..ends.min().map_or(text.len(), |end| after + end + 1)])
}

/// Whether a path or a line belongs to a part that a workspace may lack.
fn is_of_a_part(text: &str) -> bool {
    let is_named = |part: &&str| text.contains(*part) || text.contains(&part.replace('-', "_"));
    PARTS.iter().any(is_named) || text.contains("stockitem.json") || text.contains("pricetag.json")
}

/// Returns the files that every workspace has, with their texts. These texts contain no part and no
/// application.
pub(super) fn base() -> Result<Vec<(String, String)>> {
    let of_application =
        |path: &String| path.starts_with("crates/apps/") && !path.ends_with("scenario.rs");
    let paths = paths().into_iter().filter(|path| !is_of_a_part(path) && !of_application(path));
    paths
        .filter(|path| path != MANIFESTS && path != CONTRACT)
        .map(|path| Ok((path.clone(), without_parts(&path)?)))
        .collect()
}

/// Returns the text of a file without the lines of parts and applications.
pub(super) fn without_parts(path: &str) -> Result<String> {
    let text = file(path)?;
    let lines = |is_left: &dyn Fn(&&str) -> bool| -> String {
        text.lines().filter(is_left).map(|line| format!("{line}\n")).collect()
    };
    Ok(match path {
        RUNBOOK => super::runbook::for_new_workspace(text)?,
        "crates/fanout/Cargo.toml" => {
            let paragraphs = text.split("\n\n").filter(|paragraph| !is_of_a_part(paragraph));
            paragraphs.collect::<Vec<_>>().join("\n\n")
        }
        _ if path.starts_with("crates/applications/")
            || ["crates/local/Cargo.toml", "crates/local/src/handlers.rs"].contains(&path) =>
        {
            lines(&|line| !line.contains("north-depot") && !line.contains("north_depot"))
        }
        _ if path.ends_with("functions/tests/proofs.rs") => {
            let text = lines(&|line| !is_of_a_part(line));
            let histories =
                text.find("\n/// ").context("the proofs of the starter have no history")?;
            let tests = text.find("\nledgerline_proofs::application_tests!");
            let before = &text[..histories];
            let after = &text[tests.context("the starter has no proofs")?..];
            format!("{before}{after}")
        }
        _ if path.ends_with("functions/src/lib.rs") => lines(&|line| {
            !is_of_a_part(line)
                && *line != "pub mod queries;"
                && *line != "pub mod process_managers;"
        }),
        _ if path.ends_with(".rs") && !path.ends_with("scenario.rs") => {
            lines(&|line| !is_of_a_part(line))
        }
        _ => text.to_owned(),
    })
}
