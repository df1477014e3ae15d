//! `cargo xtask wire`: writes the manifests of all functions, and the blocks that it generates from
//! them in the template.

use std::{fs, path::Path};

use anyhow::{Context, Result, bail};
use ledgerline::manifest::Manifests;
use ledgerline_sam::{
    check, generate,
    manifests::{self, FILE},
    template::Source,
};

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
pub(crate) fn run(template: &Path, mode: Mode) -> Result<()> {
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
