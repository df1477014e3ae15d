//! `cargo xtask wire`: writes the manifests of all functions, and the blocks that it generates from
//! them in the template.

use std::{fs, path::Path};

use anyhow::{Context, Result, bail};
use ledgerline::manifest::Manifests;
use ledgerline_sam::{
    check,
    generate::{self, Application, DEPLOY, Deploy},
    manifests::{self, FILE},
    template::Source,
};
use serde_json::Value;

use crate::new;

/// The mode of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Write `manifest.json` and the generated blocks of the template.
    Write,
    /// Write these, and sample events for the functions and routes that have none.
    WriteSamples,
    /// Compare the manifests with `manifest.json` and the generated blocks, and write nothing.
    Check,
}

/// Builds the functions of a template. Then writes, or compares, the generated blocks of the
/// template and the `manifest.json` in its folder.
pub(crate) fn run(template: &Path, mode: Mode, removed: &[String]) -> Result<()> {
    let folder = template.parent().unwrap_or(Path::new(""));
    if folder.join(DEPLOY).exists() {
        return generated(template, mode, removed);
    }
    let source = match Source::read(template) {
        // After a merge, the text in a generated block may not be YAML.
        Err(_) if mode != Mode::Check => {
            let text =
                fs::read_to_string(template).with_context(|| template.display().to_string())?;
            Source::parse(&generate::empty_blocks(&text, template)?, template)?
        }
        source => source?,
    };
    // The development binary is one program to build, and has the functions of the workspace's own
    // template alone. A check is of the functions that are deployed.
    let is_of_workspace = template.parent().is_none_or(|folder| folder == Path::new(""));
    let own_binaries = mode == Mode::Check || !is_of_workspace;
    let manifests = check::manifests_of(&source, Path::new("."), own_binaries)?;
    if mode == Mode::Check {
        return compare(template, &source, &manifests);
    }
    let mut written = write(template, &source, &manifests)?;
    if mode == Mode::WriteSamples {
        let root = template.parent().unwrap_or(Path::new(""));
        let samples = new::part_samples::write_missing(root, &source, &manifests)?;
        written.extend(samples.iter().map(|sample| sample.display().to_string()));
    }
    if written.is_empty() {
        println!(
            "xtask wire: {FILE} and the generated blocks of {} are up to date",
            template.display()
        );
    }
    written.iter().for_each(|what| println!("xtask wire: wrote {what}"));
    Ok(())
}

/// Writes `manifest.json` and the generated blocks of the template, where they differ. Returns the
/// names of the written files and blocks.
pub(crate) fn write(
    template: &Path,
    source: &Source,
    manifests: &Manifests,
) -> Result<Vec<String>> {
    let mut written = Vec::new();
    let file = template.with_file_name(FILE);
    let wired = generate::write_blocks(source, manifests)?;
    let text = manifests::to_json(manifests);
    if fs::read_to_string(&file).ok().as_ref() != Some(&text) {
        fs::write(&file, text).with_context(|| file.display().to_string())?;
        written.push(file.display().to_string());
    }
    if !wired.stale.is_empty() {
        fs::write(template, wired.source.text()).with_context(|| template.display().to_string())?;
    }
    let block = |(line, name): (usize, String)| {
        format!("{}:{line}: the generated block `{name}`", template.display())
    };
    written.extend(wired.stale.into_iter().map(block));
    Ok(written)
}

fn compare(template: &Path, source: &Source, manifests: &Manifests) -> Result<()> {
    let differing = manifests::changed_functions(manifests, &manifests::read_file(template)?);
    let file = template.with_file_name(FILE);
    if !differing.is_empty() {
        bail!(
            "{} differs from the manifests that these functions print: {}; run `cargo xtask wire`",
            file.display(),
            differing.join(", ")
        );
    }
    let written = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    if written != manifests::to_json(manifests) {
        bail!("{} is not as `cargo xtask wire` writes it; run the command", file.display());
    }
    if let Some((line, name)) = generate::write_blocks(source, manifests)?.stale.first() {
        bail!(
            "{}:{line}: the generated block `{name}` is stale; run `cargo xtask wire`",
            template.display()
        );
    }
    println!("xtask wire: {} has the manifests of {} functions", file.display(), manifests.len());
    Ok(())
}

/// Writes, or compares, a template that is generated as a whole.
fn generated(template: &Path, mode: Mode, removed: &[String]) -> Result<()> {
    let folder = template.parent().unwrap_or(Path::new(""));
    let root = if folder == Path::new("") { Path::new(".") } else { folder };
    // The development binary is one program to build. A check is of the functions that are deployed.
    let manifests = check::manifests_in(root, mode == Mode::Check)?;
    let deploy = Deploy::read(folder)?;
    let text = generate::template(&Application::read(folder, &deploy)?, &manifests, &deploy)?;
    let old = fs::read_to_string(template).with_context(|| template.display().to_string())?;
    if mode == Mode::Check {
        if let Some(line) = first_difference(&old, &text) {
            bail!("{}:{line}: the template is stale; run `cargo xtask wire`", template.display());
        }
        println!("xtask wire: {} is up to date", template.display());
        return Ok(());
    }
    let new = Source::parse(&text, template)?;
    for side in sides(&old) {
        let old = match side.trim().is_empty() {
            true => Value::Null,
            false => Source::parse(&side, template)
                .with_context(|| {
                    format!(
                        "the ids of the old {} cannot be read: take the file of either parent of the merge, and \
                         run `cargo xtask wire` again",
                        template.display()
                    )
                })?
                .json(),
        };
        let lost = generate::lost_ids(&old, &new.json(), removed);
        if !lost.is_empty() {
            bail!(lost.join("\n"));
        }
    }
    let mut written = Vec::new();
    let file = template.with_file_name(FILE);
    for (path, text) in [(template, &text), (&file, &manifests::to_json(&manifests))] {
        if fs::read_to_string(path).ok().as_ref() != Some(text) {
            replace(path, text)?;
            written.push(path.display().to_string());
        }
    }
    if mode == Mode::WriteSamples {
        let samples = new::part_samples::write_missing(folder, &new, &manifests)?;
        written.extend(samples.iter().map(|sample| sample.display().to_string()));
    }
    if written.is_empty() {
        println!("xtask wire: {} is up to date", template.display());
    }
    written.iter().for_each(|what| println!("xtask wire: wrote {what}"));
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
