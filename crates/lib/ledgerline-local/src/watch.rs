//! `--watch`: serves an edit without stopping the stack. It rebuilds the functions and replaces
//! those whose binary has changed. Meanwhile, requests wait.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use anyhow::Result;

use ledgerline_sam::{
    build::{self, Built},
    manifests,
    template::Source,
};

use crate::{host::Function, trace_log::TraceLog};

/// The pause between two scans of the sources. A scan costs a millisecond or two.
const INTERVAL: Duration = Duration::from_millis(100);

/// The source files, and the time at which each was written.
type Sources = BTreeMap<PathBuf, SystemTime>;

/// Scans the sources and serves every edit.
pub(crate) struct Watch {
    /// The root of the workspace.
    pub(crate) root: PathBuf,
    pub(crate) functions: Vec<Arc<Function>>,
    /// The template as it was read at the start.
    pub(crate) source: Source,
    /// The functions' programs, by function name.
    pub(crate) programs: BTreeMap<String, PathBuf>,
    pub(crate) hops: TraceLog,
}

impl Watch {
    /// Serves edits for ever.
    pub(crate) async fn run(self) {
        let mut seen = self.sources();
        loop {
            tokio::time::sleep(INTERVAL).await;
            let now = self.sources();
            let Some(changed) = difference(&seen, &now) else { continue };
            let changed = changed.strip_prefix(&self.root).unwrap_or(changed).to_owned();
            // A source that is written during the build counts as another edit.
            seen = now;
            if changed == Path::new("template.yaml") {
                self.hops
                    .always("watch", "template.yaml has changed: restart the stack to read it");
                continue;
            }
            self.serve(&changed, &mut seen).await;
        }
    }

    /// Serves an edit, and the edits during its build. `seen` holds the sources of the last build.
    async fn serve(&self, changed: &Path, seen: &mut Sources) {
        let started = Instant::now();
        self.hops.always(
            "watch",
            &format!("{} has changed: building; requests wait", changed.display()),
        );
        // A build that is followed by another one has replaced functions too.
        let mut replaced = 0;
        let built = loop {
            self.functions.iter().for_each(|function| function.hold());
            let built = self.build(seen).await.map(|count| replaced += count);
            let now = self.sources();
            if difference(seen, &now).is_none() {
                break built;
            }
            self.hops.always("watch", "a source has changed during the build: building again");
            *seen = now;
        };
        match built {
            Ok(()) if replaced == 0 => self.hops.always("watch", "no function has changed"),
            Ok(()) => {
                let took = started.elapsed().as_secs_f64();
                self.hops
                    .always("watch", &format!("{replaced} functions replaced after {took:.1} s"));
                // The template is read only at the start. If an edit needs a change of the
                // template, the change is printed, and has to wait until the next start.
                match self.wiring_problems() {
                    Ok(problems) => {
                        problems.iter().for_each(|problem| self.hops.always("wiring", problem))
                    }
                    Err(error) => self.hops.always("wiring", &format!("{error:#}")),
                }
            }
            Err(error) => self.hops.always("watch", &format!("{error:#}: the old functions stay")),
        }
        // Functions that were not built are still held.
        self.functions.iter().for_each(|function| function.release());
    }

    /// Returns the differences between the current functions and the template.
    fn wiring_problems(&self) -> Result<Vec<String>> {
        manifests::stale_functions(&self.source, &build::manifests(&self.programs)?)
    }

    fn sources(&self) -> Sources {
        read_sources(&self.root)
    }

    /// Builds all functions. The function of the last request is first, because its caller waits.
    /// Each function is released as soon as it is built. Returns the number of functions that were
    /// replaced.
    async fn build(&self, seen: &Sources) -> Result<usize> {
        let all = self.functions.iter().map(|function| binary(function)).collect::<BTreeSet<_>>();
        let first = self.functions.iter().max_by_key(|function| function.last_requested());
        let first = first.filter(|function| function.last_requested() > 0 && all.len() > 1);
        let mut replaced = 0;
        for binaries in [first.iter().map(|function| binary(function)).collect(), all.clone()] {
            if binaries.is_empty() {
                continue;
            }
            let root = self.root.clone();
            let hops = self.hops;
            let seen = seen.clone();
            let functions = self.functions.clone();
            let built = move || build_and_replace(&root, &binaries, &functions, hops, &seen);
            replaced += tokio::task::spawn_blocking(built).await??;
        }
        Ok(replaced)
    }
}

/// Returns the name of a function's program: its own binary, or the development binary.
fn binary(function: &Function) -> String {
    function.program().file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

fn read_sources(root: &Path) -> Sources {
    let mut sources = Sources::new();
    collect(&root.join("crates"), &mut sources);
    for file in ["Cargo.toml", "Cargo.lock", "template.yaml"] {
        note(root.join(file), &mut sources);
    }
    sources
}

/// Builds these binaries and ends the instances of those that changed. Releases the functions of
/// each binary, unless a source is newer than `seen`: a released function must not answer with code
/// that is older than its source.
fn build_and_replace(
    root: &Path,
    binaries: &BTreeSet<String>,
    functions: &[Arc<Function>],
    hops: TraceLog,
    seen: &Sources,
) -> Result<usize> {
    let binaries: Vec<_> = binaries.iter().map(String::as_str).collect();
    let mut replaced = 0;
    build::build_each(build::profile(), root, &binaries, |Built { name, fresh, .. }| {
        let is_current = difference(seen, &read_sources(root)).is_none();
        for function in functions.iter().filter(|function| binary(function) == name) {
            if !fresh {
                hops.line("watch", &format!("{} is replaced", function.name()));
                function.end_instances();
                replaced += 1;
            }
            if is_current {
                function.release();
            }
        }
        if !is_current {
            functions.iter().for_each(|function| function.hold());
        }
    })?;
    Ok(replaced)
}

/// Collects the sources below this folder, by their extensions. A file that disappears meanwhile
/// was a temporary file of an editor.
fn collect(folder: &Path, sources: &mut Sources) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let hidden = entry.file_name().to_string_lossy().starts_with('.');
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && !hidden => collect(&path, sources),
            Ok(kind) if kind.is_file() && !hidden && is_source(&path) => note(path, sources),
            Ok(_) | Err(_) => {}
        }
    }
}

fn note(path: PathBuf, sources: &mut Sources) {
    if let Ok(written) = fs::metadata(&path).and_then(|metadata| metadata.modified()) {
        sources.insert(path, written);
    }
}

fn is_source(path: &Path) -> bool {
    matches!(
        path.extension().and_then(|extension| extension.to_str()),
        Some("rs" | "toml" | "json")
    )
}

/// Returns the first file that is new, deleted, or written at another time.
fn difference<'a>(before: &'a Sources, now: &'a Sources) -> Option<&'a Path> {
    let changed = now.iter().find(|(path, written)| before.get(*path) != Some(*written));
    let gone = || before.keys().find(|path| !now.contains_key(*path));
    changed.map(|(path, _)| path).or_else(gone).map(PathBuf::as_path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_edit_of_a_source_is_detected_and_other_files_are_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let inside = |name: &str| folder.path().join(name);
        let sources = || {
            let mut sources = Sources::new();
            collect(folder.path(), &mut sources);
            sources
        };
        fs::create_dir_all(inside("x/src")).unwrap();
        fs::write(inside("x/src/lib.rs"), "").unwrap();
        let before = sources();
        for other in ["x/src/.lib.rs.swp", "x/src/lib.rs~", "x/src/4913", "x/README.md"] {
            fs::write(inside(other), "").unwrap();
        }
        assert_eq!(difference(&before, &sources()), None);

        fs::File::open(inside("x/src/lib.rs"))
            .unwrap()
            .set_modified(SystemTime::UNIX_EPOCH)
            .unwrap();
        assert_eq!(difference(&before, &sources()), Some(inside("x/src/lib.rs").as_path()));
        let before = sources();
        fs::write(inside("x/src/other.rs"), "").unwrap();
        assert_eq!(difference(&before, &sources()), Some(inside("x/src/other.rs").as_path()));
        let before = sources();
        fs::remove_file(inside("x/src/other.rs")).unwrap();
        assert_eq!(difference(&before, &sources()), Some(inside("x/src/other.rs").as_path()));
    }
}
