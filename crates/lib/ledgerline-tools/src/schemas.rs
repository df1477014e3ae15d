//! `cargo xtask schemas`: the contract of the workspace, made from its code.
//!
//! * `openapi.json` has the routes of the HTTP API.
//! * `asyncapi.json` has the messages on the bus, on the queues and in the Kinesis stream, if
//!   events are on the bus.
//! * `events/<category>/<type>.<number>.json` is the JSON Schema of an event at a schema number.
//! * `rows/<name>.json` is the JSON Schema of a row. If the view has a script for PostgreSQL,
//!   `views/<name>.sql`, the generated end of the script has a column for each field of the row.
//! * `released/` is a copy of all of them, with which every later version is compared.

mod api_errors;
mod asyncapi;
mod compatibility;
mod http_operations;
mod inferred;
mod openapi;
mod portable;
mod revision;
mod sql_views;
mod stored;
mod types;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use ledgerline::{Aggregates, manifest::Manifests};
use ledgerline_sam::{manifests, template::Source};
use serde_json::Value;

use self::{sql_views::StaleScript, stored::Stored};

use crate::new::TEMPLATE;

pub(crate) use self::types::Types;

/// The folder of the contract.
pub(crate) const FOLDER: &str = "docs/schemas";
/// The folder in [`FOLDER`] with the contract of the last release.
const RELEASED: &str = "released";

/// The documents of a contract, by their paths in [`FOLDER`].
pub(crate) type Documents = BTreeMap<PathBuf, Value>;

/// The mode of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Write the contract.
    Write,
    /// Fail if a file is stale, and write nothing.
    Check,
    /// Write the contract, and a copy of it as the released one.
    Release,
}

/// Makes the contract from the operations of the development binary, the template, the stored
/// shapes and the sample events of the workspace. Builds the binary first. Compares the contract
/// with the one at the git revision `against`; without a revision, with the released one. Also
/// writes the types into the file `types_path`.
///
/// # Errors
/// When the contract is incompatible with the earlier one, unless the mode is [`Mode::Release`].
/// When a file is stale in [`Mode::Check`]. When a stored shape does not fit its schema, the
/// revision has no contract, or a file cannot be read or written.
pub(crate) fn run<L: Aggregates>(
    mode: Mode,
    against: Option<&str>,
    types_path: Option<&Path>,
) -> Result<()> {
    let (root, template, folder) = (Path::new(""), Path::new(TEMPLATE), Path::new(FOLDER));
    let earlier = match against {
        Some(revision) => revision::contract(root, revision)?,
        None => read(&folder.join(RELEASED))?,
    };
    let source = Source::read(template)?;
    let manifests = manifests::read_file(template)?;
    let Stored { documents, mut problems } = stored::collect::<L>(root, &read(folder)?)?;
    let operations = http_operations::read(&manifests)?;
    let types = Types { operations, aggregates: types::aggregates::<L>(), documents };
    if let Some(path) = types_path {
        fs::write(path, text(&serde_json::to_value(&types)?))?;
    }
    problems.extend(asyncapi::taken_fields(&types.aggregates));
    let scripts = sql_views::stale_scripts(root, &types.documents)?;
    let documents = types.contract(&source, &manifests, root)?;
    if mode != Mode::Release {
        problems.extend(compatibility::problems(&earlier, &documents));
    }
    let stale = stale(folder, &documents)?;
    if mode == Mode::Check {
        let paths = stale.iter().map(|path| folder.join(path));
        let paths = paths.chain(scripts.iter().map(|script| script.path.clone()));
        let is_stale =
            |path: PathBuf| format!("{} is stale: run `cargo xtask schemas`", path.display());
        problems.extend(paths.map(is_stale));
    }
    if !problems.is_empty() {
        problems.iter().for_each(|problem| eprintln!("{problem}"));
        bail!(
            "`{FOLDER}` has {} problems: correct each, or break a rule on purpose {}",
            problems.len(),
            match against {
                Some(_) => "and compare with a revision that breaks the rule",
                None => "with `cargo xtask schemas --release`",
            }
        );
    }
    let written = match mode {
        Mode::Check => 0,
        Mode::Write | Mode::Release => {
            for StaleScript { path, text } in &scripts {
                fs::write(path, text).with_context(|| path.display().to_string())?;
            }
            write(folder, &documents, &stale)? + scripts.len()
        }
    };
    if mode == Mode::Release {
        let released = folder.join(RELEASED);
        let stale = self::stale(&released, &documents)?;
        write(&released, &documents, &stale)?;
    }
    println!(
        "xtask schemas: {FOLDER} has {} documents, and {} operations; {written} files changed",
        documents.len(),
        types.operations.values().map(|of| of.operations.len()).sum::<usize>(),
    );
    Ok(())
}

impl Types {
    /// Makes all documents of the contract of the workspace in `root`.
    ///
    /// # Errors
    /// When two functions give one name to different schemas, or a sample event cannot be read.
    pub(crate) fn contract(
        &self,
        source: &Source,
        manifests: &Manifests,
        root: &Path,
    ) -> Result<Documents> {
        let mut documents = self.documents.clone();
        documents.insert("openapi.json".into(), openapi::document(source, &self.operations, root)?);
        if asyncapi::has_listeners(source)? {
            let document = asyncapi::document(source, manifests, &self.aggregates, &self.documents);
            documents.insert("asyncapi.json".into(), document);
        }
        documents.values_mut().for_each(portable::simplify);
        Ok(documents)
    }
}

/// Reads the documents in a folder, without those of the last release.
fn read(folder: &Path) -> Result<Documents> {
    let mut documents = Documents::new();
    for path in files(folder)? {
        let text = fs::read_to_string(folder.join(&path))?;
        let document = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
        documents.insert(path, document);
    }
    Ok(documents)
}

/// Returns the paths of the JSON files in a folder, without those of the last release.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(inner) = folders.pop() {
        let path = folder.join(&inner);
        if !path.exists() {
            continue;
        }
        for entry in fs::read_dir(&path).with_context(|| path.display().to_string())? {
            let entry = entry?;
            let name = inner.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                folders.extend((name != Path::new(RELEASED)).then_some(name));
            } else if name.extension().is_some_and(|extension| extension == "json") {
                files.push(name);
            }
        }
    }
    Ok(files)
}

/// Returns the paths of the files that differ from the documents, or that belong to none.
fn stale(folder: &Path, documents: &Documents) -> Result<Vec<PathBuf>> {
    let mut stale: Vec<_> =
        files(folder)?.into_iter().filter(|path| !documents.contains_key(path)).collect();
    for (path, document) in documents {
        if fs::read_to_string(folder.join(path)).ok().as_ref() != Some(&text(document)) {
            stale.push(path.clone());
        }
    }
    stale.sort();
    Ok(stale)
}

/// Writes the documents of a contract into the workspace in this folder.
pub(crate) fn write_all(root: &Path, documents: &Documents) -> Result<()> {
    let folder = root.join(FOLDER);
    write(&folder, documents, &stale(&folder, documents)?).map(|_| ())
}

/// Writes the stale files, and removes those that belong to no document.
fn write(folder: &Path, documents: &Documents, stale: &[PathBuf]) -> Result<usize> {
    for path in stale {
        let at = folder.join(path);
        let Some(document) = documents.get(path) else {
            fs::remove_file(&at).with_context(|| at.display().to_string())?;
            continue;
        };
        fs::create_dir_all(at.parent().unwrap_or(folder))?;
        fs::write(&at, text(document)).with_context(|| at.display().to_string())?;
    }
    Ok(stale.len())
}

/// Returns the text of a document, in ASCII. The patterns of texts have invisible characters and
/// characters that change the order of others, which no file of source code should have.
fn text(document: &Value) -> String {
    let text = serde_json::to_string_pretty(document).unwrap_or_default();
    let mut ascii = String::with_capacity(text.len() + 1);
    for character in text.chars() {
        if character.is_ascii() && character != '\u{7f}' {
            ascii.push(character);
        } else {
            let units = character.encode_utf16(&mut [0; 2]).to_vec();
            units.iter().for_each(|unit| ascii.push_str(&format!("\\u{unit:04x}")));
        }
    }
    ascii.push('\n');
    ascii
}

/// Returns the reasons why a value does not fit a schema; `None` if the value fits.
fn misfit(schema: &Value, value: &Value) -> Option<String> {
    let (mut schemas, mut compiler) = (boon::Schemas::new(), boon::Compiler::new());
    if let Err(error) = compiler.add_resource("schema.json", schema.clone()) {
        return Some(error.to_string());
    }
    match compiler.compile("schema.json", &mut schemas) {
        // The caller names the schema, so the message leaves out the first line.
        Ok(index) => schemas.validate(value, index).err().map(|error| {
            let error = error.to_string();
            let reasons = error.lines().skip(1).map(|line| line.trim_start_matches("- ").trim());
            reasons.collect::<Vec<_>>().join("; ")
        }),
        Err(error) => Some(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_document_is_written_in_ascii_and_read_as_it_was() {
        let document = json!({ "pattern": "[\u{200b}\u{1f3f4}\u{7f}é]" });
        let text = text(&document);
        assert!(text.is_ascii() && text.contains("\\u200b\\ud83c\\udff4\\u007f\\u00e9"), "{text}");
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), document);
    }

    #[test]
    fn changed_missing_and_left_over_files_are_stale_and_released_ones_are_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let documents = Documents::from([
            ("openapi.json".into(), json!({ "openapi": "3.1.0" })),
            ("rows/balances.json".into(), json!({})),
        ]);
        let all = stale(folder.path(), &documents).unwrap();
        assert_eq!(all.len(), 2);
        write(folder.path(), &documents, &all).unwrap();
        write(&folder.path().join(RELEASED), &documents, &all).unwrap();
        assert_eq!(stale(folder.path(), &documents).unwrap(), Vec::<PathBuf>::new());
        assert_eq!(read(folder.path()).unwrap(), documents);
        fs::write(folder.path().join("openapi.json"), "{}").unwrap();
        fs::write(folder.path().join("rows/others.json"), "{}").unwrap();
        let two = stale(folder.path(), &documents).unwrap();
        assert_eq!(two, [PathBuf::from("openapi.json"), PathBuf::from("rows/others.json")]);
        write(folder.path(), &documents, &two).unwrap();
        assert!(!folder.path().join("rows/others.json").exists());
    }
}
