//! Builds the functions' binaries with cargo.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};
use cargo_metadata::{Message, MetadataCommand, Package};
use ledgerline::manifest::{Manifest, Manifests};

pub use crate::cargo::{cargo, remove_package_variables};
use crate::progress;

/// The name of the development binary, which has the handlers of all functions.
const HANDLERS: &str = "handlers";

/// A binary that is up to date.
#[derive(Debug)]
pub struct Built {
    /// Name of the binary target.
    pub name: String,
    /// Its path.
    pub program: PathBuf,
    /// Whether it was up to date before the build.
    pub fresh: bool,
}

/// The variable with the folder of binaries that are up to date. A program takes its binaries from
/// there and does not run cargo. Tests build the functions once and start dozens of stacks and
/// tools, each of which would wait for cargo's locks.
pub const BUILT: &str = "LEDGERLINE_BUILT";

/// Builds the binaries in the workspace at `root`, and returns the path of each.
///
/// # Errors
/// When cargo is missing or the build fails. Cargo prints why a build fails.
pub fn build(root: &Path, binaries: &[&str]) -> Result<BTreeMap<String, PathBuf>> {
    match built(binaries) {
        Some(programs) => Ok(programs),
        None => {
            let mut programs = BTreeMap::new();
            build_each(profile(), root, binaries, |built| {
                programs.insert(built.name, built.program);
            })?;
            Ok(programs)
        }
    }
}

/// Builds the functions with these names, and returns the program of each. It is the development
/// binary, if the workspace has one. It is the function's own binary if `own_binaries` is set, or
/// if the binaries are built already, as for tests.
///
/// # Errors
/// As those of [`build`].
pub fn functions(
    root: &Path,
    names: &[&str],
    own_binaries: bool,
) -> Result<BTreeMap<String, PathBuf>> {
    if own_binaries || std::env::var_os(BUILT).is_some() || !has_handlers(root) {
        return build(root, names);
    }
    let programs = build(root, &[HANDLERS])?;
    let program = programs.get(HANDLERS).context("cargo built no development binary")?;
    Ok(names.iter().map(|name| ((*name).to_owned(), program.clone())).collect())
}

/// The names of the functions of the workspace at `root`: those of its development binary. A
/// package without one has a binary for each function.
///
/// # Errors
/// As those of [`build`].
pub fn function_names(root: &Path) -> Result<Vec<String>> {
    if !has_handlers(root) {
        let metadata = MetadataCommand::new().no_deps().current_dir(root).exec()?;
        let folder = root.canonicalize()?;
        let is_here =
            |package: &&Package| package.manifest_path.parent().is_some_and(|it| it == folder);
        let package = metadata.packages.iter().find(is_here);
        let package = package.with_context(|| format!("{} has no package", root.display()))?;
        let binaries = package.targets.iter().filter(|target| target.is_bin());
        return Ok(binaries.map(|binary| binary.name.clone()).collect());
    }
    let programs = build(root, &[HANDLERS])?;
    let program = programs.get(HANDLERS).context("cargo built no development binary")?;
    let output = Command::new(program).arg("--names").output()?;
    let names = String::from_utf8(output.stdout).context("the development binary")?;
    if !output.status.success() || names.is_empty() {
        bail!("{} --names prints no name: {}", program.display(), output.status);
    }
    Ok(names.lines().map(ToOwned::to_owned).collect())
}

/// Runs functions to get their manifests. The keys are the names of the functions, and the values
/// are the paths of their programs.
///
/// # Errors
/// When a function cannot be run, or does not print a manifest.
pub fn manifests(programs: &BTreeMap<String, PathBuf>) -> Result<Manifests> {
    let ask = |(name, program): (&String, &PathBuf)| {
        // The development binary has the handlers of all functions, and chooses one by this
        // variable of Lambda.
        let output =
            Command::new(program).arg("--manifest").env("AWS_LAMBDA_FUNCTION_NAME", name).output();
        let output = output.with_context(|| format!("cannot run {}", program.display()))?;
        if !output.status.success() {
            bail!("{name} --manifest ended with {}", output.status);
        }
        let manifest: Manifest = serde_json::from_slice(&output.stdout)
            .with_context(|| format!("{name} --manifest prints no valid manifest"))?;
        manifest.validate().with_context(|| format!("the manifest of `{name}`"))?;
        Ok((name.clone(), manifest))
    };
    programs.iter().map(ask).collect()
}

/// Builds the functions of the workspace or package at `root`, and runs them to get their
/// manifests. With `own_binaries`, the functions' own binaries run, and otherwise the development
/// binary, if there is one.
///
/// # Errors
/// When they do not build, or as those of [`manifests()`].
pub fn manifests_in(root: &Path, own_binaries: bool) -> Result<Manifests> {
    let names = function_names(root)?;
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    manifests(&functions(root, &names, own_binaries)?)
}

/// Whether the workspace at `root` has a development binary.
fn has_handlers(root: &Path) -> bool {
    root.join("crates/local/src").join(HANDLERS).with_extension("rs").exists()
}

/// Builds an example of a package of the workspace at `root`, and returns its path.
///
/// # Errors
/// As those of [`build`].
pub fn build_example(root: &Path, name: &str) -> Result<PathBuf> {
    let mut program = None;
    build_targets(profile(), root, "--example", &[name], |built| program = Some(built.program))?;
    program.with_context(|| format!("cargo built no example `{name}`"))
}

/// The binaries in the folder of [`BUILT`]; `None` if the variable or one of the binaries is
/// missing.
fn built(binaries: &[&str]) -> Option<BTreeMap<String, PathBuf>> {
    let folder = PathBuf::from(std::env::var_os(BUILT)?);
    let program = |name: &&str| {
        Some(((*name).to_owned(), folder.join(name))).filter(|(_, path)| path.exists())
    };
    binaries.iter().map(program).collect()
}

/// The profile of this program, with which the functions are built too. The name of cargo's target
/// folder shows it. The debug assertions of this crate do not show it, because a workspace may
/// disable those of its dependencies.
pub fn profile() -> &'static str {
    let program = std::env::current_exe().unwrap_or_default();
    let profile = |folder: &Path| {
        let name = folder.file_name()?.to_str()?;
        [("debug", "dev"), ("fast", "fast"), ("release", "release")]
            .into_iter()
            .find_map(|(folder, profile)| (folder == name).then_some(profile))
    };
    program.ancestors().find_map(profile).unwrap_or("dev")
}

/// Builds the binaries, and calls `each` with each binary as soon as it is up to date.
///
/// # Errors
/// As those of [`build`]. The binaries with which `each` was called before the error are up to
/// date.
pub fn build_each(
    profile: &str,
    root: &Path,
    binaries: &[&str],
    each: impl FnMut(Built),
) -> Result<()> {
    build_targets(profile, root, "--bin", binaries, each)
}

/// Builds the targets with these names. `option` is cargo's option for their kind, such as `--bin`.
fn build_targets(
    profile: &str,
    root: &Path,
    option: &str,
    names: &[&str],
    mut each: impl FnMut(Built),
) -> Result<()> {
    let mut command = cargo();
    // The library of libfaketime is for the functions only, because cargo has been seen to hang
    // with it. Cargo's progress bar has no estimate, and would share its line with the progress
    // that has one.
    command
        .env_remove("LD_PRELOAD")
        .env("CARGO_TERM_PROGRESS_WHEN", "never")
        .current_dir(root)
        .args([
            "build",
            // The functions may belong to another package than the one in the folder.
            "--workspace",
            "--message-format=json-render-diagnostics",
            "--profile",
            profile,
        ]);
    for name in names {
        command.args([option, name]);
    }
    let mut child = command.stdout(Stdio::piped()).spawn().context("cannot run cargo")?;
    let output = child.stdout.take().context("cargo has no output")?;
    let mut missing: BTreeSet<_> = names.iter().copied().collect();
    let progress = progress::Build::start(root, names);
    for message in Message::parse_stream(std::io::BufReader::new(output)) {
        let Message::CompilerArtifact(artifact) = message.context("cargo's output")? else {
            continue;
        };
        progress.note(&artifact);
        if let Some(executable) = artifact.executable
            && (artifact.target.is_bin() || artifact.target.is_example())
        {
            missing.remove(artifact.target.name.as_str());
            each(Built {
                name: artifact.target.name,
                program: executable.into_std_path_buf(),
                fresh: artifact.fresh,
            });
        }
    }
    if !child.wait()?.success() {
        bail!("the functions do not build");
    }
    if let Some(name) = missing.first() {
        bail!("cargo built no `{name}`");
    }
    Ok(())
}
