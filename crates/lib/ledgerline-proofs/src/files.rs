//! Sample events and stored shapes: in a folder of a workspace, or compiled in, as those of
//! ledgerline are.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use serde_json::Value;

/// Files by path, with slashes.
#[derive(Debug, Clone)]
pub(crate) enum Files {
    Folder(PathBuf),
    Embedded(&'static [(&'static str, &'static str)]),
}

impl Files {
    /// The text of a file.
    pub(crate) fn text(&self, path: &str) -> Result<String> {
        match self {
            Self::Folder(folder) => {
                let path = folder.join(path);
                fs::read_to_string(&path).with_context(|| path.display().to_string())
            }
            Self::Embedded(files) => {
                let file = files.iter().find(|(known, _)| *known == path);
                file.map(|(_, text)| (*text).to_owned())
                    .with_context(|| format!("there is no {path}"))
            }
        }
    }

    /// The JSON in a file.
    pub(crate) fn json(&self, path: &str) -> Result<Value> {
        serde_json::from_str(&self.text(path)?).with_context(|| path.to_owned())
    }

    /// The JSON files in the folders, each as the name of its folder and its path, in alphabetical
    /// order.
    pub(crate) fn samples(&self) -> Result<Vec<(String, String)>> {
        let mut samples = match self {
            Self::Embedded(files) => files.iter().map(|(path, _)| (*path).to_owned()).collect(),
            Self::Folder(folder) => {
                paths_in_folders(folder).with_context(|| folder.display().to_string())?
            }
        };
        samples.retain(|path| path.ends_with(".json"));
        samples.sort();
        let folder = |path: &str| path.split('/').next().unwrap_or_default().to_owned();
        Ok(samples.into_iter().map(|path| (folder(&path), path)).collect())
    }
}

/// The paths of the files in the folders of a folder.
fn paths_in_folders(folder: &Path) -> std::io::Result<Vec<String>> {
    let mut paths = Vec::new();
    for inner in fs::read_dir(folder)? {
        let inner = inner?;
        for file in fs::read_dir(inner.path())? {
            let (inner, file) = (inner.file_name(), file?.file_name());
            paths.push(format!("{}/{}", inner.to_string_lossy(), file.to_string_lossy()));
        }
    }
    Ok(paths)
}
