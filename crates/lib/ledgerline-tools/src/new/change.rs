//! The files that a new part adds to a workspace, and the files that it changes.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use ledgerline_sam::sample_events::{ANSWERS, EVENTS};

use super::{names::Names, part_samples::Sample, starter};

/// The library of the functions that belong to no application.
const FANOUT: &str = "crates/fanout/src/lib.rs";
/// The template, which `cargo xtask wire` makes.
pub(crate) const TEMPLATE: &str = "template.yaml";
/// The line before the list of a package's functions.
const DECLARED: &str = "ledgerline_lambda::handlers! {";

/// The written files with their previous texts. New files had none.
pub(super) type Replaced = BTreeMap<PathBuf, Option<String>>;

/// Restores the previous texts of files. Removes new files, and the folders that become empty.
///
/// # Errors
/// The first failure. The other files are restored nevertheless.
pub(super) fn restore(root: &Path, replaced: Replaced) -> Result<()> {
    let mut restored = Ok(());
    for (path, text) in replaced {
        let path = root.join(path);
        let done = match text {
            Some(text) => fs::write(&path, text),
            None if path.exists() => fs::remove_file(&path),
            None => continue,
        };
        if let Err(error) = done {
            restored = restored
                .and(Err(error).with_context(|| format!("{} cannot be restored", path.display())));
        }
        let folders = path.ancestors().skip(1).take_while(|folder| *folder != root);
        // `remove_dir` removes empty folders only.
        _ = folders.map(fs::remove_dir).find(Result::is_err);
    }
    restored
}

/// The planned changes of a workspace. All of them are checked before the first file is written, so
/// that a taken name leaves no incomplete part behind.
pub(super) struct Change {
    /// The root folder of the workspace.
    root: PathBuf,
    /// The names of the new part.
    names: Names,
    files: BTreeMap<PathBuf, String>,
    /// A file that the part adds duplicate.
    duplicate: Option<PathBuf>,
    /// Lines for sorted lists in other files: the file, the beginning of every line in the list,
    /// and the new line.
    sorted: Vec<(PathBuf, &'static str, String)>,
    /// Lines for lists in other files: the file, the line before the list, and the new line.
    followed: Vec<(PathBuf, &'static str, String)>,
    /// Lines for manifests that have a line for each application: the package, and the new line.
    applications: Vec<(&'static str, String)>,
    /// Functions for packages: the library of the package, and the line that declares the function.
    declared: Vec<(PathBuf, String)>,
    /// Calls for the proofs of an application: the file of the proofs, and the new call.
    tried: Vec<(PathBuf, String)>,
    /// Histories for the proofs of an application: the file of the proofs, and the new history.
    histories: Vec<(PathBuf, String)>,
    /// Insertions: the file, the beginning of a line, and the text to insert before that line.
    inserted: Vec<(PathBuf, String, String)>,
    /// Replacements: the file, the old text, and the new text.
    replaced: Vec<(PathBuf, String, String)>,
}

impl Change {
    pub(super) fn new(root: &Path, names: Names) -> Self {
        Self {
            root: root.to_owned(),
            names,
            files: BTreeMap::new(),
            duplicate: None,
            sorted: Vec::new(),
            followed: Vec::new(),
            applications: Vec::new(),
            declared: Vec::new(),
            tried: Vec::new(),
            histories: Vec::new(),
            inserted: Vec::new(),
            replaced: Vec::new(),
        }
    }

    /// Returns the names of the new part.
    pub(super) fn names(&self) -> &Names {
        &self.names
    }

    /// Returns a text of the starter with the new names.
    pub(super) fn named(&self, text: &str) -> String {
        self.names.rename(text)
    }

    /// Whether the workspace has this file or folder.
    pub(super) fn has(&self, path: &str) -> bool {
        self.root.join(self.named(path)).exists()
    }

    /// Reads a file of the workspace.
    pub(super) fn read(&self, path: &str) -> Result<String> {
        let path = self.named(path);
        fs::read_to_string(self.root.join(&path)).with_context(|| path)
    }

    /// Adds a file with this text. `path` is the path in the starter.
    pub(super) fn file(&mut self, path: &str, text: String) {
        let path = PathBuf::from(self.named(path));
        if self.files.insert(path.clone(), text).is_some() {
            self.duplicate = Some(path);
        }
    }

    /// Adds files of the starter, with the new names.
    pub(super) fn copy(&mut self, paths: &[String]) -> Result<()> {
        for path in paths {
            self.file(path, self.named(starter::file(path)?));
        }
        Ok(())
    }

    /// Adds files of the starter that contain lists, without the lines of these lists.
    pub(super) fn copy_empty(&mut self, paths: &[String]) -> Result<()> {
        for path in paths {
            self.file(path, self.named(&starter::without_parts(path)?));
        }
        Ok(())
    }

    /// Adds a sample event of a function, and the expected answers to it.
    pub(super) fn sample(&mut self, function: &str, case: &str, sample: Sample) {
        self.file(&format!("{EVENTS}/{function}/{case}.json"), sample.event);
        self.file(&format!("{ANSWERS}/{function}/{case}.json"), sample.answers);
    }

    /// Inserts a text before the first line of a file that begins with `before`.
    pub(super) fn inserted(&mut self, path: &str, before: &str, text: &str) {
        let text = self.named(text);
        self.inserted.push((path.into(), before.to_owned(), text));
    }

    /// Replaces a text in a file.
    pub(super) fn replaced(&mut self, path: &str, old: &str, new: &str) {
        let texts = (self.named(path).into(), self.named(old), self.named(new));
        self.replaced.push(texts);
    }

    /// Adds a line of the starter to a list, in alphabetical order, so that concurrent changes of
    /// two developers rarely conflict. All lines of the list begin with `begins`.
    pub(super) fn sorted(&mut self, path: &str, begins: &'static str, text: &str) -> Result<()> {
        let line = self.named(starter::line(path, &format!("{}{text}", begins.trim_start()))?);
        let indent = &begins[..begins.len() - begins.trim_start().len()];
        self.sorted.push((self.named(path).into(), begins, format!("{indent}{line}")));
        Ok(())
    }

    /// Adds a module to the list of modules in a file.
    pub(super) fn module(&mut self, path: &str, module: &str) -> Result<()> {
        self.sorted(path, "pub mod ", &format!("{module};"))
    }

    /// Adds a line of the starter to the list after the line `after` of a file, in alphabetical
    /// order.
    pub(super) fn followed(&mut self, path: &str, after: &'static str, text: &str) -> Result<()> {
        let line = self.named(starter::line(path, text)?);
        let indent = &after[..after.len() - after.trim_start().len()];
        // The content of a body is indented by four more columns.
        let more = if after.ends_with('{') { "    " } else { "" };
        self.followed.push((path.into(), after, format!("{indent}{more}{line}")));
        Ok(())
    }

    /// Adds a line of the starter to the list of applications in the manifest of this package.
    pub(super) fn application(&mut self, package: &'static str, text: &str) -> Result<()> {
        let line = self.named(starter::line(&format!("{package}/Cargo.toml"), text)?);
        self.applications.push((package, format!("{line}\n")));
        Ok(())
    }

    /// Declares a function of the application.
    pub(super) fn handler(&mut self, function: &str) -> Result<()> {
        self.declared(&format!("{}/src/lib.rs", starter::FUNCTIONS), function)
    }

    /// Declares a projector of the application that writes into PostgreSQL.
    pub(super) fn handler_in_postgres(&mut self, function: &str) -> Result<()> {
        self.handler(function)?;
        if let Some((_, line)) = self.declared.last_mut()
            && let Some((runner, view)) = line.split_once("::run(")
        {
            let (runner, view) = (
                runner.replace(": ledgerline_lambda::", ": ledgerline_postgres::"),
                view.replace("::VIEW);", ""),
            );
            *line = format!("{runner}::run({view}::VIEW, {view}::SQL);");
        }
        Ok(())
    }

    /// Declares a function that belongs to no application. Adds the library of these functions if
    /// the workspace lacks it.
    pub(super) fn fanout(&mut self, function: &str) -> Result<()> {
        let library = Path::new(FANOUT);
        if !self.root.join(library).exists() && !self.files.contains_key(library) {
            self.copy_empty(&[FANOUT.to_owned()])?;
        }
        self.declared(FANOUT, function)
    }

    fn declared(&mut self, library: &str, function: &str) -> Result<()> {
        let line = self.named(starter::line(library, &format!("{function}: "))?);
        self.declared.push((self.named(library).into(), line));
        Ok(())
    }

    /// Adds a call to the proofs of the application: the line of the starter that contains this
    /// text.
    pub(super) fn tried(&mut self, text: &str) -> Result<()> {
        let path = format!("{}/tests/proofs.rs", starter::FUNCTIONS);
        let line = self.named(starter::line(&path, text)?);
        self.tried.push((self.named(&path).into(), line));
        Ok(())
    }

    /// Adds the history of an aggregate, from which the proofs of the application make commits.
    pub(super) fn history(&mut self, title: &str) -> Result<()> {
        let path = format!("{}/tests/proofs.rs", starter::FUNCTIONS);
        let history =
            starter::between(&path, &format!("/// {title}: "), &["/// ", "ledgerline_proofs::"])?;
        self.histories.push((self.named(&path).into(), self.named(history)));
        Ok(())
    }

    /// Writes all changes. Returns the previous texts of the files.
    pub(super) fn make(self) -> Result<Replaced> {
        let taken = self.files.keys().find(|path| self.root.join(path).exists());
        if let Some(taken) = self.duplicate.as_ref().or(taken) {
            bail!("{} exists already: choose another name", taken.display());
        }
        let mut texts = Texts { root: self.root, new: self.files, changed: BTreeMap::new() };
        // Insert first: an inserted text may contain a list that gets lines below.
        for (path, begins, new) in &self.inserted {
            texts.edit(path, |text| with_inserted(text, begins, new))?;
        }
        for (path, old, new) in &self.replaced {
            texts.edit(path, |text| with_replaced(text, old, new))?;
        }
        for (path, begins, line) in &self.sorted {
            texts.edit(path, |text| Ok(with_line(text, begins, line)))?;
        }
        for (path, after, line) in &self.followed {
            texts.edit(path, |text| with_listed(text, after, line))?;
        }
        for (path, line) in &self.tried {
            texts.edit(path, |text| with_tried(text, line))?;
        }
        for (path, history) in &self.histories {
            texts.edit(path, |text| with_history(text, history))?;
        }
        for (path, line) in &self.declared {
            texts.edit(path, |text| with_declared(text, line))?;
        }
        for (package, line) in &self.applications {
            texts.edit(&Path::new(package).join("Cargo.toml"), |text| {
                with_application(text, line)
            })?;
        }
        texts.write()
    }
}

/// The texts to write, by the paths of their files.
struct Texts {
    root: PathBuf,
    new: BTreeMap<PathBuf, String>,
    changed: BTreeMap<PathBuf, String>,
}

impl Texts {
    /// Edits a new file, or a file of the workspace.
    fn edit(&mut self, path: &Path, edit: impl FnOnce(&str) -> Result<String>) -> Result<()> {
        let edited = match self.new.get(path).or(self.changed.get(path)) {
            Some(text) => edit(text),
            None => {
                let text = fs::read_to_string(self.root.join(path));
                edit(&text.with_context(|| path.display().to_string())?)
            }
        };
        let edited = edited.with_context(|| path.display().to_string())?;
        match self.new.get_mut(path) {
            Some(text) => *text = edited,
            None => _ = self.changed.insert(path.to_owned(), edited),
        }
        Ok(())
    }

    fn write(self) -> Result<Replaced> {
        let mut replaced = Replaced::new();
        // Cargo and `cargo xtask wire` write these files afterwards.
        for lock in ["Cargo.lock", TEMPLATE] {
            replaced.insert(lock.into(), fs::read_to_string(self.root.join(lock)).ok());
        }
        for path in self.new.keys().chain(self.changed.keys()) {
            replaced.insert(path.clone(), fs::read_to_string(self.root.join(path)).ok());
        }
        let write = |(path, text): (&PathBuf, &String)| {
            let at = self.root.join(path);
            fs::create_dir_all(at.parent().unwrap_or(&self.root))?;
            fs::write(at, text).with_context(|| path.display().to_string())
        };
        match self.new.iter().chain(&self.changed).try_for_each(write) {
            Ok(()) => Ok(replaced),
            Err(error) => restore(&self.root, replaced).context(error.to_string()).and(Err(error)),
        }
    }
}

/// Returns the text with `new` before the first line that begins with `begins`.
fn with_inserted(text: &str, begins: &str, new: &str) -> Result<String> {
    let place = text.find(&format!("\n{begins}"));
    let (before, after) =
        text.split_at(1 + place.with_context(|| format!("it does not have {}", begins.trim()))?);
    Ok([before, new, after].concat())
}

/// Returns the text with `new` instead of the first `old`.
fn with_replaced(text: &str, old: &str, new: &str) -> Result<String> {
    if !text.contains(old) {
        bail!("it does not have {}", old.trim());
    }
    Ok(text.replacen(old, new, 1))
}

/// Returns the text with one more line in the list of lines that begin with `begins`, in
/// alphabetical order. The first line of a list goes after the documentation of the file, or, if
/// the line is indented, into the body of `fn visit`.
fn with_line(text: &str, begins: &str, new: &str) -> String {
    let mut lines: Vec<&str> = text.lines().collect();
    let listed = || lines.iter().enumerate().filter(|(_, line)| line.starts_with(begins));
    let place = listed()
        .find(|(_, line)| **line > new)
        .map(|(place, _)| place)
        .or_else(|| listed().next_back().map(|(place, _)| place + 1));
    let place = place.unwrap_or_else(|| {
        let opens = lines.iter().position(|line| line.contains("fn visit("));
        match begins.starts_with(' ').then_some(opens).flatten() {
            Some(opens) => opens + 1,
            None => {
                lines.iter().take_while(|line| line.starts_with("//!") || line.is_empty()).count()
            }
        }
    });
    lines.insert(place, new);
    lines.join("\n") + "\n"
}

/// Returns the text with one more line in the list after the line `after`, in alphabetical order.
/// The list ends before the first line that is indented less.
fn with_listed(text: &str, after: &str, new: &str) -> Result<String> {
    let begins = &new[..new.len() - new.trim_start().len()];
    let mut lines: Vec<&str> = text.lines().collect();
    let before = lines.iter().position(|line| *line == after);
    let first =
        1 + before.with_context(|| format!("it does not have the line `{}`", after.trim()))?;
    let listed = lines[first..].iter().take_while(|line| line.starts_with(begins));
    let place = first + listed.take_while(|line| **line < new).count();
    lines.insert(place, new);
    Ok(lines.join("\n") + "\n")
}

/// Returns the proofs of an application with one more call, in alphabetical order.
fn with_tried(proofs: &str, what: &str) -> Result<String> {
    let new = format!("        {what}");
    let mut lines: Vec<&str> = proofs.lines().collect();
    let starts = lines.iter().position(|line| line.contains("Application::new::<"));
    let starts = starts.context("it does not have the line Application::new::<…>(…)")?;
    let ends =
        lines[starts..].iter().position(|line| *line == "}").context("the function has no end")?;
    // A call may take several lines. Only its first line begins with a dot, so only that line
    // counts.
    let later = |line: &&str| line.trim_start().starts_with('.') && line.trim_start() > what;
    let place = lines[starts..starts + ends].iter().position(later).unwrap_or(ends);
    lines.insert(starts + place, &new);
    Ok(lines.join("\n") + "\n")
}

/// Returns the proofs of an application with one more history, before the tests.
fn with_history(proofs: &str, history: &str) -> Result<String> {
    const TESTS: &str = "ledgerline_proofs::application_tests!";
    let (before, after) =
        proofs.split_once(TESTS).with_context(|| format!("it does not have the line {TESTS}"))?;
    Ok(format!("{before}{history}\n{TESTS}{after}"))
}

/// Returns the library of a package with one more function, in alphabetical order. The first
/// function brings the list with it.
fn with_declared(library: &str, line: &str) -> Result<String> {
    if library.lines().any(|line| line == DECLARED) {
        return with_listed(library, DECLARED, &format!("    {line}"));
    }
    Ok(format!("{}\n\n{DECLARED}\n    {line}\n}}\n", library.trim_end()))
}

/// Returns a manifest with one more application among its dependencies, in alphabetical order.
fn with_application(list: &str, line: &str) -> Result<String> {
    let is_application = |listed: &&str| listed.contains("path = \"../apps/");
    let after = list.lines().filter(is_application).find(|listed| *listed > line);
    let place = match after {
        Some(after) => list.find(after),
        None => match list.lines().rfind(is_application) {
            Some(last) => list.find(last).map(|place| place + last.len() + 1),
            None => list.find("[dependencies]\n").map(|starts| {
                let ends = list[starts..].find("\n\n");
                ends.map_or(list.len(), |ends| starts + ends + 1)
            }),
        },
    };
    let place = place.context("it has no `[dependencies]`")?;
    let (before, after) = list.split_at(place);
    Ok(format!("{before}{line}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_a_list_stands_in_its_alphabetical_place() {
        let list = "//! Views.\n\npub mod b;\npub mod d;\n\nuse x;\n";
        for (module, expected) in [
            ("a;", "//! Views.\n\npub mod a;\npub mod b;\npub mod d;\n\nuse x;\n"),
            ("c;", "//! Views.\n\npub mod b;\npub mod c;\npub mod d;\n\nuse x;\n"),
            ("e;", "//! Views.\n\npub mod b;\npub mod d;\npub mod e;\n\nuse x;\n"),
        ] {
            assert_eq!(with_line(list, "pub mod ", &format!("pub mod {module}")), expected);
        }
        assert_eq!(
            with_line("//! Views.\n\n", "pub mod ", "pub mod a;"),
            "//! Views.\n\npub mod a;\n"
        );
        let body = "    fn visit(v: V) {\n    }\n";
        assert_eq!(
            with_line(body, "        v.visit::<", "        v.visit::<A>();"),
            "    fn visit(v: V) {\n        v.visit::<A>();\n    }\n"
        );
    }

    #[test]
    fn a_line_of_an_indented_list_stands_in_its_alphabetical_place() {
        let list = |lines: &[&str]| format!("a\nqueues: |\n{}z\n", lines.concat());
        for (line, expected) in [
            ("  a", ["  a\n", "  b\n", "  d\n"]),
            ("  c", ["  b\n", "  c\n", "  d\n"]),
            ("  e", ["  b\n", "  d\n", "  e\n"]),
        ] {
            let listed = with_listed(&list(&["  b\n", "  d\n"]), "queues: |", line).unwrap();
            assert_eq!(listed, list(&expected));
        }
        assert_eq!(with_listed(&list(&[]), "queues: |", "  a").unwrap(), list(&["  a\n"]));
    }

    #[test]
    fn a_function_stands_in_its_alphabetical_place_in_the_list_of_its_package() {
        let list = |functions: &[&str]| {
            let lines: String =
                functions.iter().map(|name| format!("    {name}: run();\n")).collect();
            format!("//! Shop.\n\npub mod x;\n\n{DECLARED}\n{lines}}}\n\nfn y() {{\n    a();\n}}\n")
        };
        for (name, expected) in
            [("a", ["a", "b", "d"]), ("c", ["b", "c", "d"]), ("e", ["b", "d", "e"])]
        {
            let declared = with_declared(&list(&["b", "d"]), &format!("{name}: run();")).unwrap();
            assert_eq!(declared, list(&expected));
        }
        let first = with_declared("//! Shop.\n\npub mod x;\n", "a: run();").unwrap();
        assert_eq!(first, format!("//! Shop.\n\npub mod x;\n\n{DECLARED}\n    a: run();\n}}\n"));
    }

    #[test]
    fn an_application_stands_in_its_alphabetical_place() {
        let line = |name: &str| format!("{name} = {{ path = \"../apps/{name}/model\" }}\n");
        for rest in ["", "\n[dev-dependencies]\n"] {
            let list = |names: &[&str]| {
                let lines: String = names.iter().map(|name| line(name)).collect();
                format!("[lib]\n\n[dependencies]\nledgerline.workspace = true\n{lines}{rest}")
            };
            for (name, expected) in
                [("a", ["a", "b", "d"]), ("c", ["b", "c", "d"]), ("e", ["b", "d", "e"])]
            {
                assert_eq!(
                    with_application(&list(&["b", "d"]), &line(name)).unwrap(),
                    list(&expected)
                );
            }
            assert_eq!(with_application(&list(&[]), &line("a")).unwrap(), list(&["a"]));
        }
    }
}
