//! Tests of the tracked files of this repository: words, links, reference pages and imports.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod circles;
mod links;
mod names;
mod parameters;
mod prose;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// A tracked file.
struct File {
    /// The path from the root of the repository.
    path: String,
    text: String,
}

/// Returns the tracked files with one of these ends, except those whose paths contain one of the
/// texts, and symbolic links to other files.
fn files(ends: &[&str], except: &[&str]) -> Vec<File> {
    let listed = Command::new("git").arg("ls-files").current_dir(root()).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let paths = listed.lines().filter(|path| {
        ends.iter().any(|end| path.ends_with(end))
            && !except.iter().any(|except| path.contains(except))
            && !root().join(path).is_symlink()
    });
    // A file that is deleted and not yet committed is listed too.
    let read = |path: &str| {
        let text = fs::read_to_string(root().join(path)).ok()?;
        Some(File { path: path.to_owned(), text })
    };
    paths.filter_map(read).collect()
}

/// Returns a page with an empty line for each line of its fenced blocks.
fn without_code(page: &str) -> String {
    let mut in_code = false;
    let lines = page.lines().map(|line| {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        if in_code || is_fence { "" } else { line }
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns the folders of the applications that docs/applications.md lists and that do not exist.
/// An application may be deleted, and nothing else has to be edited then.
fn deleted_applications() -> Vec<String> {
    let page = fs::read_to_string(root().join("docs/applications.md")).unwrap();
    let listed = links::targets(&page);
    let folders = listed.iter().filter_map(|link| link.strip_suffix("/README.md"));
    let folders = folders.filter_map(|link| link.strip_prefix("../"));
    let deleted = folders.filter(|folder| !root().join(folder).exists());
    deleted.map(|folder| format!("{folder}/")).collect()
}

/// Checks that a file has this text, or writes it if the variable `UPDATE_REFERENCE` is set. `left`
/// selects the lines of the file that are compared.
fn is_up_to_date(path: &str, text: &str, left: impl FnMut(&&str) -> bool) {
    let file = root().join(path);
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        fs::write(&file, text).unwrap();
    }
    let known = fs::read_to_string(&file).unwrap_or_default();
    let known: String = known.lines().filter(left).map(|line| format!("{line}\n")).collect();
    assert_equal(path, text, &known);
}

fn assert_equal(path: &str, text: &str, known: &str) {
    let new: Vec<_> = text.lines().filter(|line| !known.lines().any(|old| old == *line)).collect();
    assert!(
        text == known,
        "{path} is not up to date: UPDATE_REFERENCE=1 cargo test -p xtask --test repository. \
         New lines: {new:#?}"
    );
}

#[test]
#[should_panic(expected = "is not up to date")]
fn a_superfluous_line_is_reported() {
    assert_equal("a file", "one\n", "one\ntwo\n");
}
