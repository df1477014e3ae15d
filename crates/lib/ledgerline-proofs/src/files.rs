//! Sample events and stored shapes: in a folder of a workspace, or compiled in, as those of
//! ledgerline are.

use std::{fs, path::PathBuf};

use serde_json::Value;

/// Files by path, with slashes.
#[derive(Debug, Clone)]
pub(crate) enum Files {
    Folder(PathBuf),
    Embedded(&'static [(&'static str, &'static str)]),
}

impl Files {
    /// The text of a file.
    pub(crate) fn text(&self, path: &str) -> Result<String, String> {
        match self {
            Self::Folder(folder) => {
                let path = folder.join(path);
                fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))
            }
            Self::Embedded(files) => {
                let file = files.iter().find(|(known, _)| *known == path);
                file.map(|(_, text)| (*text).to_owned())
                    .ok_or_else(|| format!("there is no {path}"))
            }
        }
    }

    /// The JSON in a file.
    pub(crate) fn json(&self, path: &str) -> Result<Value, String> {
        serde_json::from_str(&self.text(path)?).map_err(|error| format!("{path}: {error}"))
    }

    /// The JSON files in the folders, each as the name of its folder and its path, in alphabetical
    /// order.
    pub(crate) fn samples(&self) -> Result<Vec<(String, String)>, String> {
        let mut samples = match self {
            Self::Embedded(files) => files.iter().map(|(path, _)| (*path).to_owned()).collect(),
            Self::Folder(folder) => {
                in_folders(folder).map_err(|error| format!("{}: {error}", folder.display()))?
            }
        };
        samples.retain(|path| path.ends_with(".json"));
        samples.sort();
        let of = |path: String| (path.split('/').next().unwrap_or_default().to_owned(), path);
        Ok(samples.into_iter().map(of).collect())
    }
}

/// The paths of the files in the folders of a folder.
fn in_folders(folder: &PathBuf) -> std::io::Result<Vec<String>> {
    let mut paths = Vec::new();
    for inner in fs::read_dir(folder)? {
        let inner = inner?;
        for file in fs::read_dir(inner.path())? {
            let inner = inner.file_name();
            let file = file?.file_name();
            paths.push(format!("{}/{}", inner.to_string_lossy(), file.to_string_lossy()));
        }
    }
    Ok(paths)
}
