//! What a template needs to know of an application, and no manifest has.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use anyhow::{Context, Result, bail};

use super::{
    deploy::{Deploy, OptionalPart},
    part::Names,
};
use crate::functions::capitalize;

/// The name of an application, and the parts of its template that it can do without.
#[derive(Debug, Clone)]
pub struct Application {
    /// The prefix of scopes, of the types of problems, and of the sources of events:
    /// `north-depot`.
    pub name: String,
    /// The parts that `Parts` in `deploy.yaml` adds.
    pub parts: BTreeSet<OptionalPart>,
    /// The folder in `crates/apps` that has the function of each name: `bank`.
    pub folders: BTreeMap<String, String>,
}

impl Application {
    /// Reads the name from the `Cargo.toml` in this folder, and the parts from the team's file.
    ///
    /// The name is neither that of the folder nor that of the stack: tokens and events have it, so
    /// another folder or a second stack must not change it.
    ///
    /// # Errors
    /// When the name is missing, or a part does not exist.
    pub fn read(folder: &Path, deploy: &Deploy) -> Result<Self> {
        let path = folder.join("Cargo.toml");
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let manifest: toml::Table =
            text.parse().with_context(|| format!("{} is no TOML", path.display()))?;
        let name = ["workspace", "package"].into_iter().find_map(|section| {
            manifest.get(section)?.get("metadata")?.get("ledgerline")?.get("name")?.as_str()
        });
        let Some(name) = name.filter(|name| is_name(name)) else {
            bail!(
                "{}: `workspace.metadata.ledgerline.name` must be the application's name in \
                 lower-case words with dashes, such as north-depot: it begins each scope and event",
                path.display()
            );
        };
        Ok(Self { name: name.to_owned(), parts: deploy.parts()?, folders: folders(folder) })
    }

    /// The names to fill into parts.
    pub(super) fn names(&self) -> Names {
        let camel = self.name.split('-').map(capitalize).collect();
        let title = capitalize(&self.name).replace('-', " ");
        Names::from([("Application", self.name.clone()), ("Title", title), ("Namespace", camel)])
    }
}

fn folders(root: &Path) -> BTreeMap<String, String> {
    let apps = root.join("crates/apps");
    let functions = |folder: String| {
        let files = names(&apps.join(&folder).join("functions/src/bin")).into_iter();
        files.map(move |file| (file.trim_end_matches(".rs").to_owned(), folder.clone()))
    };
    names(&apps).into_iter().flat_map(functions).collect()
}

/// The names in a folder; none if the folder is missing.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

fn is_name(name: &str) -> bool {
    let is_word = |word: &str| {
        word.starts_with(|c: char| c.is_ascii_lowercase())
            && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit())
    };
    name.split('-').all(is_word)
}
