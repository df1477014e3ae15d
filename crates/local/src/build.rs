//! Builds the functions' binaries with cargo.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};
use cargo_metadata::Message;

/// Builds the binaries in the workspace at `root`, and says where each of them is.
///
/// # Errors
/// When cargo is missing or the build fails; cargo has then printed why.
pub fn build(root: &Path, binaries: &[&str]) -> Result<BTreeMap<String, PathBuf>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(root).args(["build", "--message-format=json-render-diagnostics"]);
    for binary in binaries {
        command.args(["--bin", binary]);
    }
    if !cfg!(debug_assertions) {
        command.arg("--release");
    }
    let mut child = command.stdout(Stdio::piped()).spawn().context("cannot run cargo")?;
    let output = child.stdout.take().context("cargo has no output")?;
    let mut executables = BTreeMap::new();
    for message in Message::parse_stream(std::io::BufReader::new(output)) {
        if let Message::CompilerArtifact(artifact) = message.context("cargo's output")?
            && let Some(executable) = artifact.executable
            && artifact.target.is_bin()
        {
            executables.insert(artifact.target.name, executable.into_std_path_buf());
        }
    }
    if !child.wait()?.success() {
        bail!("the functions do not build");
    }
    for binary in binaries {
        if !executables.contains_key(*binary) {
            bail!("cargo built no binary {binary}");
        }
    }
    Ok(executables)
}
