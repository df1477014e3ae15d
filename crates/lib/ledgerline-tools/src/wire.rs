//! `cargo xtask wire`: makes the template from the manifests of all functions and `deploy.yaml`.

use std::{fs, path::Path};

use anyhow::{Context, Result, bail};
use ledgerline::manifest::Manifests;
use ledgerline_sam::{
    build,
    generate::{self, Application, Deploy},
    manifests,
    template::Source,
};
use serde_json::Value;

use crate::new;

/// The mode of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Write the template.
    Write,
    /// Write it, and sample events for the functions and routes that have none.
    WriteSamples,
    /// Compare it, and write nothing.
    Check,
}

/// Builds the functions of the folder of a template, and writes or compares the template. `removed`
/// are the ids that may go from it.
pub(crate) fn run(template: &Path, mode: Mode, removed: &[String]) -> Result<()> {
    let folder = template.parent().unwrap_or(Path::new(""));
    let root = if folder == Path::new("") { Path::new(".") } else { folder };
    // The development binary is one program to build. A check is of the functions that are
    // deployed.
    let manifests = build::manifests_in(root, mode == Mode::Check)?;
    let deploy = Deploy::read(folder)?;
    let application = Application::read(folder, &deploy)?;
    let text = generate::template(&application, &manifests, &deploy)?;
    if mode == Mode::Check {
        match find_difference(template, &text)? {
            Some(difference) => bail!(difference),
            None => println!("xtask wire: {} is up to date", template.display()),
        }
        return Ok(());
    }
    let mut written = Vec::new();
    let old = fs::read_to_string(template).with_context(|| template.display().to_string())?;
    if old != text {
        keep_ids(template, &old, &Source::parse(&text, template)?.json(), removed)?;
        replace(template, &text)?;
        written.push(template.display().to_string());
    }
    generate::replacement_differences(&application, &manifests, &deploy)?
        .iter()
        .for_each(|line| println!("xtask wire: not generated: {line}"));
    if mode == Mode::WriteSamples {
        let samples = new::part_samples::write_missing(folder, &application.name, &manifests)?;
        written.extend(samples.iter().map(|sample| sample.display().to_string()));
    }
    if written.is_empty() {
        println!("xtask wire: {} is up to date", template.display());
    }
    written.iter().for_each(|what| println!("xtask wire: wrote {what}"));
    Ok(())
}

/// Returns the text of the template of the application in this folder.
pub(crate) fn make_template(folder: &Path, manifests: &Manifests) -> Result<String> {
    let deploy = Deploy::read(folder)?;
    generate::template(&Application::read(folder, &deploy)?, manifests, &deploy)
}

/// Finds a template that differs from what its own manifests and `deploy.yaml` make, without a
/// build.
pub(crate) fn find_edit(template: &Path) -> Result<Option<String>> {
    let folder = template.parent().unwrap_or(Path::new(""));
    find_difference(template, &make_template(folder, &manifests::read_file(template)?)?)
}

fn find_difference(template: &Path, text: &str) -> Result<Option<String>> {
    let old = fs::read_to_string(template).with_context(|| template.display().to_string())?;
    Ok(first_difference(&old, text).map(|line| {
        format!("{}:{line}: the template is stale: run `cargo xtask wire`", template.display())
    }))
}

/// Fails if the next deployment would delete a resource with data because its id is another.
fn keep_ids(template: &Path, old: &str, new: &Value, removed: &[String]) -> Result<()> {
    for side in sides(old).iter().filter(|side| !side.trim().is_empty()) {
        let old = Source::parse(side, template).with_context(|| {
            format!(
                "the ids of the old {} cannot be read: take the file of either parent of the \
                 merge, and run `cargo xtask wire` again",
                template.display()
            )
        })?;
        let lost = generate::lost_ids(&old.json(), new, removed);
        if !lost.is_empty() {
            bail!(lost.join("\n"));
        }
    }
    Ok(())
}

/// The first line in which two texts differ, from 1.
fn first_difference(one: &str, other: &str) -> Option<usize> {
    let same = one.lines().zip(other.lines()).take_while(|(one, other)| one == other).count();
    (one != other).then_some(same + 1)
}

/// Replaces a file as a whole: after a crash, the old text or the new one is there.
fn replace(path: &Path, text: &str) -> Result<()> {
    let new = path.with_extension("new");
    fs::write(&new, text)
        .and_then(|()| fs::rename(&new, path))
        .with_context(|| path.display().to_string())
}

/// The texts of both parents of a merge that left its conflicts in a file; otherwise, the text.
fn sides(text: &str) -> Vec<String> {
    if !text.lines().any(|line| line.starts_with("<<<<<<< ")) {
        return vec![text.to_owned()];
    }
    let side = |hidden: &[char]| {
        let mut marker = None;
        let mut lines = String::new();
        for line in text.lines() {
            let begins = ["<<<<<<< ", "||||||| ", "=======", ">>>>>>> "];
            match begins.iter().find(|begins| line.starts_with(**begins)) {
                Some(&">>>>>>> ") => marker = None,
                Some(begins) => marker = begins.chars().next(),
                None if marker.is_some_and(|marker| hidden.contains(&marker)) => {}
                None => lines += &format!("{line}\n"),
            }
        }
        lines
    };
    vec![side(&['|', '=']), side(&['<', '|'])]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_with_conflicts_has_the_text_of_each_parent() {
        let text = "a\n<<<<<<< ours\nb\n||||||| base\nx\n=======\nc\n>>>>>>> theirs\nd\n";
        assert_eq!(sides(text), ["a\nb\nd\n", "a\nc\nd\n"]);
        assert_eq!(sides("a\n=======\n"), ["a\n=======\n"]);
    }

    #[test]
    fn a_stale_template_is_named_with_its_first_different_line() {
        assert_eq!(first_difference("a\nb\n", "a\nc\n"), Some(2));
        assert_eq!(first_difference("a\nb\n", "a\n"), Some(2));
        assert_eq!(first_difference("a\n", "a\n"), None);
    }
}
