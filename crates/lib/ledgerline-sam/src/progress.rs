//! Progress lines of long work, so that no command is silent for ten seconds.

use std::{
    collections::BTreeSet,
    io::{Write, stderr},
    path::Path,
    process::Command,
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use cargo_metadata::{Artifact, DependencyKind, MetadataCommand, PackageId};

use crate::cargo::cargo;

/// The pause between two lines.
const INTERVAL: Duration = Duration::from_secs(5);

/// Prints a line every five seconds, until it is dropped.
#[derive(Debug)]
pub struct Progress(#[expect(dead_code, reason = "its end ends the thread")] mpsc::Sender<()>);

impl Progress {
    /// Starts a thread that prints the lines. `line` gets the time since the start.
    pub fn start(mut line: impl FnMut(Duration) -> String + Send + 'static) -> Self {
        let (alive, ended) = mpsc::channel();
        let started = Instant::now();
        thread::spawn(move || {
            while ended.recv_timeout(INTERVAL) == Err(mpsc::RecvTimeoutError::Timeout) {
                // A reader may have closed the output. That must not stop the work.
                let _ = writeln!(stderr().lock(), "{}", line(started.elapsed()));
            }
        });
        Self(alive)
    }
}

/// The packages and binaries that a build has finished.
#[derive(Debug, Default)]
struct Artifacts {
    /// All of them, including those that were up to date.
    known: BTreeSet<(PackageId, Option<String>)>,
    /// The number of those that cargo compiled.
    compiled: usize,
}

/// The progress of a build of binaries by cargo.
#[derive(Debug)]
pub(crate) struct Build {
    artifacts: Arc<Mutex<Artifacts>>,
    _shown: Progress,
}

impl Build {
    pub(crate) fn start(root: &Path, binaries: &[&str]) -> Self {
        let artifacts = Arc::<Mutex<Artifacts>>::default();
        let root = root.to_owned();
        let shared = Arc::clone(&artifacts);
        let binaries: Vec<_> = binaries.iter().map(|binary| (*binary).to_owned()).collect();
        // The packages are counted at the first line, so a shorter build does not run
        // `cargo metadata`.
        let mut package_count = None;
        let shown = Progress::start(move |elapsed| {
            let packages = package_count.get_or_insert_with(|| packages_of(&root, &binaries).ok());
            let artifacts = shared.lock().unwrap_or_else(PoisonError::into_inner);
            line(
                packages.map(|packages| packages + binaries.len()),
                artifacts.known.len(),
                artifacts.compiled,
                elapsed,
            )
        });
        Self { artifacts, _shown: shown }
    }

    /// Counts an artifact of cargo. Build scripts do not count, because they belong to a package.
    pub(crate) fn note(&self, artifact: &Artifact) {
        if artifact.target.is_custom_build() {
            return;
        }
        let binary = artifact.target.is_bin().then(|| artifact.target.name.clone());
        let mut artifacts = self.artifacts.lock().unwrap_or_else(PoisonError::into_inner);
        if artifacts.known.insert((artifact.package_id.clone(), binary)) && !artifact.fresh {
            artifacts.compiled += 1;
        }
    }
}

/// The progress line of a build. The estimate is rough, because each package counts the same.
fn line(all: Option<usize>, known: usize, compiled: usize, elapsed: Duration) -> String {
    let seconds = elapsed.as_secs();
    // Cargo may build more than `all` counts.
    let Some(all) = all.map(|all| all.max(known)) else {
        return format!("  building: {known} packages and binaries after {seconds} s");
    };
    let left = match compiled {
        0 => String::new(),
        compiled => format!(", about {} s left", seconds as usize * (all - known) / compiled),
    };
    format!("  building: {known} of {all} packages and binaries after {seconds} s{left}")
}

/// The number of packages from which these binaries are built on this machine. Packages without a
/// library do not count.
fn packages_of(root: &Path, binaries: &[String]) -> Result<usize> {
    let version = Command::new("rustc").arg("-vV").output().context("cannot run rustc")?.stdout;
    let version = String::from_utf8(version)?;
    let host = version
        .lines()
        .find_map(|line| line.strip_prefix("host: "))
        .context("rustc has no host")?;
    let mut metadata = MetadataCommand::new();
    metadata.current_dir(root).other_options(["--filter-platform", host].map(ToOwned::to_owned));
    if let Some(path) = cargo().get_program().to_str() {
        metadata.cargo_path(path);
    }
    let metadata = metadata.exec()?;
    let is_requested = |target: &&cargo_metadata::Target| {
        (target.is_bin() || target.is_example()) && binaries.contains(&target.name)
    };
    let mut targets =
        metadata.packages.iter().flat_map(|package| &package.targets).filter(is_requested);
    // An example also has development dependencies, which this function does not count. So the
    // build of an example has no estimate.
    anyhow::ensure!(targets.all(|target| target.is_bin()), "an example is built");
    let has_requested_binary = |package: &&cargo_metadata::Package| {
        package.targets.iter().any(|target| target.is_bin() && binaries.contains(&target.name))
    };
    let mut open: Vec<_> = metadata
        .packages
        .iter()
        .filter(has_requested_binary)
        .map(|package| package.id.clone())
        .collect();
    let mut reached = BTreeSet::new();
    while let Some(id) = open.pop() {
        let node =
            metadata.resolve.iter().flat_map(|resolve| &resolve.nodes).find(|node| node.id == id);
        if !reached.insert(id) {
            continue;
        }
        let built = node.into_iter().flat_map(|node| &node.deps).filter(|dependency| {
            dependency.dep_kinds.iter().any(|kind| kind.kind != DependencyKind::Development)
        });
        open.extend(built.map(|dependency| dependency.pkg.clone()));
    }
    let has_library = |package: &&cargo_metadata::Package| {
        reached.contains(&package.id)
            && package
                .targets
                .iter()
                .any(|target| target.is_lib() || target.is_rlib() || target.is_proc_macro())
    };
    Ok(metadata.packages.iter().filter(has_library).count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_a_build_estimates_the_rest_from_the_compiled_packages() {
        let after = |all, known, compiled| line(all, known, compiled, Duration::from_secs(20));
        assert_eq!(
            after(Some(40), 30, 10),
            "  building: 30 of 40 packages and binaries after 20 s, about 20 s left"
        );
        assert_eq!(after(Some(40), 30, 0), "  building: 30 of 40 packages and binaries after 20 s");
        assert_eq!(
            after(Some(40), 41, 20),
            "  building: 41 of 41 packages and binaries after 20 s, about 0 s left"
        );
        assert_eq!(after(None, 30, 10), "  building: 30 packages and binaries after 20 s");
    }

    #[test]
    fn packages_of_a_binary_include_build_dependencies_but_not_development_dependencies() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: String| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("Cargo.toml", "[workspace]\nresolver = \"3\"\nmembers = [\"*\"]\n".into());
        for (name, rest, source) in [
            ("program", "[dependencies]\nused = { path = \"../used\" }\n", "main.rs"),
            (
                "used",
                "[build-dependencies]\nbuilder = { path = \"../builder\" }\n\
                 [dev-dependencies]\ntester = { path = \"../tester\" }\n",
                "lib.rs",
            ),
            ("builder", "", "lib.rs"),
            ("tester", "", "lib.rs"),
        ] {
            write(
                &format!("{name}/Cargo.toml"),
                format!("[package]\nname = {name:?}\nedition = \"2024\"\n{rest}"),
            );
            write(&format!("{name}/src/{source}"), String::new());
        }
        assert_eq!(packages_of(folder.path(), &["program".to_owned()]).unwrap(), 2);
        assert_eq!(packages_of(folder.path(), &["another".to_owned()]).unwrap(), 0);
    }
}
