#![doc = include_str!("../README.md")]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "this is a program for people")]

mod e2e;
mod fuzz;
mod invocations;
mod lint;
mod new;
mod schemas;
mod sizes;
mod tools;
mod wire;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::{ExitCode, Stdio},
};

use anyhow::{Context, Result, bail};
use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package, PackageId};
use clap::Parser;
use ledgerline::{Aggregate, Aggregates, Visitor, manifest::Manifests};
use ledgerline_sam::{
    build::cargo, lookup::resources, rules, sample_events::EVENTS, template::Source,
};

/// Check this workspace, and create parts in it.
#[derive(Debug, Parser)]
#[command(name = "xtask")]
enum Task {
    /// Build the functions, and make `template.yaml` from their manifests and `deploy.yaml`.
    Wire {
        /// Write nothing: fail if the template is stale.
        #[arg(long)]
        check: bool,
        /// Also write a sample event for each function and route that has none, with its likely
        /// answer. Existing samples stay as they are.
        #[arg(long, conflicts_with = "check")]
        samples: bool,
        /// The template. Its `deploy.yaml` is in the same folder.
        #[arg(long, default_value = "template.yaml")]
        template: PathBuf,
        /// A resource that the template no longer has, and that the next deployment may delete with
        /// its data. May be given several times.
        #[arg(long = "remove", value_name = "ID", conflicts_with = "check")]
        removed: Vec<String>,
    },
    /// Write the contract of the workspace into `docs/schemas`: OpenAPI, AsyncAPI, and JSON Schemas
    /// of events and rows.
    ///
    /// A change that is incompatible with `docs/schemas/released` fails.
    Schemas {
        /// Write nothing: fail if a file is stale.
        #[arg(long)]
        check: bool,
        /// Also write `docs/schemas/released`, with which later contracts are compared.
        #[arg(long, conflicts_with = "check")]
        release: bool,
        /// Compare with the contract at this revision of git, such as the tag of the last release,
        /// instead of `docs/schemas/released`.
        #[arg(long, value_name = "REV", conflicts_with = "release")]
        against: Option<String>,
        /// Also write the types from which the contract is made, for the starter of new workspaces.
        #[arg(long, value_name = "FILE", hide = true)]
        types: Option<PathBuf>,
    },
    /// Check the workspace: crates, template, stored shapes, alarms and sample events.
    ///
    /// Pure crates reach no AWS and no runtime. The template is what `wire` makes, and has
    /// no forbidden right. Aggregates read every stored shape. Each part that can fail
    /// has dead letters and alarms.
    Check {
        /// The template to check: the source, or the output of SAM. In the output of SAM, only the
        /// permissions are checked.
        #[arg(long, default_value = "template.yaml")]
        template: PathBuf,
    },
    /// Create an aggregate, a projector, a subscription, a query, a process manager or a workspace.
    ///
    /// The part compiles, passes its tests and deploys. A workspace needs a new or empty folder.
    New(new::Part),
    /// Run the linters of the template and of the dependencies. Needs Python.
    ///
    /// The first run installs the linters.
    Lint,
    /// Put load on a local stack for an hour, and check that no commit is lost or duplicated.
    ///
    /// Meanwhile, functions are killed and services have outages. Only for work on ledgerline
    /// itself.
    Soak {
        /// Arguments for the example `soak` of `ledgerline-testing`, such as --minutes.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Run `sam local invoke` for every function with every sample event. Needs Docker.
    Samples {
        /// The address at which containers find the services of the local stack on this machine.
        #[arg(long)]
        address: Option<String>,
        /// Invoke the result of the last `sam build` for this machine.
        #[arg(long)]
        no_build: bool,
        /// More arguments for `sam local invoke`, such as --skip-pull-image.
        #[arg(last = true)]
        sam_arguments: Vec<String>,
    },
    /// Print the size and the start time of every function, after `sam build` for this machine.
    Sizes,
    /// Send requests that are made from the contract to a local stack, and check every answer.
    /// Needs Python.
    ///
    /// The first run installs schemathesis. `docs/schemas/openapi.json` is the contract.
    Fuzz {
        /// The most requests with generated values for each route.
        #[arg(long, default_value_t = 60)]
        examples: u32,
        /// The seed of the generated values. The same seed sends the same requests.
        #[arg(long, env = "LEDGERLINE_SEED", default_value_t = 1)]
        seed: u64,
    },
    /// Deploy to an emulator of AWS, and test the deployment. Needs Python.
    ///
    /// The first run installs the emulator.
    E2e {
        /// Deploy the result of the last `sam build` for this machine.
        #[arg(long)]
        no_build: bool,
    },
}

/// Whether a crate must reach no AWS, no Lambda and no async runtime, directly or through its
/// dependencies (rule 12). `ledgerline-sam`, the library of the template, is such a crate, so that
/// `cargo xtask` builds it in seconds.
fn is_pure(package: &Package) -> bool {
    let pure = ["crates/lib/ledgerline", "crates/lib/ledgerline-sam", "crates/applications"];
    let folder = folder(package);
    pure.iter().any(|pure| folder.ends_with(pure))
        || folder.ends_with("model") && is_of_an_application(package)
}

/// Returns the folder of a package.
fn folder(package: &Package) -> &Path {
    package.manifest_path.parent().map_or(Path::new(""), |folder| folder.as_std_path())
}

fn is_of_an_application(package: &Package) -> bool {
    folder(package)
        .parent()
        .and_then(Path::parent)
        .is_some_and(|apps| apps.ends_with("crates/apps"))
}

fn is_a_library(package: &Package) -> bool {
    folder(package).parent().is_some_and(|libraries| libraries.ends_with("crates/lib"))
}

/// Runs the command line of `cargo xtask` in the workspace of the current folder. `L` lists the
/// aggregates of the workspace.
pub fn main<L: Aggregates>() -> ExitCode {
    let task = Task::parse();
    // The path of a new workspace is relative to the current folder, so the current folder must not
    // change.
    let is_workspace = matches!(&task, Task::New(part) if part.kind == new::Kind::Workspace);
    let entered = if is_workspace { Ok(()) } else { enter_workspace() };
    let done = entered.and_then(|()| match task {
        Task::Wire { check, samples, template, removed } => {
            let mode = match (check, samples) {
                (true, _) => wire::Mode::Check,
                (_, true) => wire::Mode::WriteSamples,
                _ => wire::Mode::Write,
            };
            wire::run(&template, mode, &removed)
        }
        Task::Schemas { check, release, against, types } => {
            let mode = match (check, release) {
                (true, _) => schemas::Mode::Check,
                (_, true) => schemas::Mode::Release,
                _ => schemas::Mode::Write,
            };
            schemas::run::<L>(mode, against.as_deref(), types.as_deref())
        }
        Task::Check { template } => check::<L>(&template),
        Task::New(part) => new::run::<L>(&part),
        Task::Lint => lint::run::<L>(),
        Task::Fuzz { examples, seed } => fuzz::run(examples, seed),
        Task::E2e { no_build } => e2e::run(!no_build),
        Task::Soak { arguments } => soak(&MetadataCommand::new().no_deps().exec()?, &arguments),
        Task::Samples { address, no_build, sam_arguments } => {
            invocations::run(address.as_deref(), !no_build, &sam_arguments)
        }
        Task::Sizes => sizes::run(),
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Creates a workspace with a small application in this folder, which must be new or empty. The
/// last part of the folder's path is the name of the application.
///
/// # Errors
/// When the name is not allowed, the folder is not empty, or a file cannot be written.
pub fn new_workspace(folder: &Path) -> Result<()> {
    new::workspace::lay_down(folder)
}

/// The package that has the soak as an example.
const SOAKED: &str = "ledgerline-testing";

/// Runs the soak. The soak needs the test application of the libraries, which only ledgerline's own
/// repository has.
fn soak(metadata: &Metadata, arguments: &[String]) -> Result<()> {
    if !metadata.workspace_packages().iter().any(|package| package.name.as_str() == SOAKED) {
        bail!(
            "`{SOAKED}`, whose example is the soak, is no package of this workspace; \
             run `cargo xtask soak` in a clone of ledgerline's own repository"
        );
    }
    tools::run(
        cargo().args(["run", "--package", SOAKED, "--example", "soak", "--"]).args(arguments),
    )
}

/// Makes the root of the workspace the current folder.
fn enter_workspace() -> Result<()> {
    let root = MetadataCommand::new().no_deps().exec()?.workspace_root;
    std::env::set_current_dir(&root).with_context(|| root.to_string())
}

fn check<L: Aggregates>(template: &Path) -> Result<()> {
    let metadata = MetadataCommand::new().exec()?;
    let mut problems = impurities(&metadata);
    problems.extend(emulator_paths(&metadata));
    problems.extend(upward_dependencies(&metadata));
    problems.extend(mismatches(&metadata)?);
    problems.extend(compiled_twice(&metadata)?);
    problems.extend(category_problems(&ledgerline::categories::<L>()));
    problems.extend(shape_problems::<L>(metadata.workspace_root.as_std_path())?);
    let source = Source::read(template)?;
    // The output of SAM has Lambda's own functions instead, without the properties that the checks
    // of the wiring read.
    let is_written = resources(&source.json(), &["AWS::Serverless::Function"]).next().is_some();
    problems.extend(if is_written { wire::find_edit(template)? } else { None });
    problems.extend(if is_written {
        let root = metadata.workspace_root.as_std_path();
        let manifests = ledgerline_sam::manifests::read_file(template)?;
        let runbook = root.join("docs/runbook.md");
        let runbook =
            fs::read_to_string(&runbook).with_context(|| runbook.display().to_string())?;
        let samples = sample_problems(&source, &manifests, root);
        [rules::problems(&source, &runbook), samples].concat()
    } else {
        rules::forbidden_rights(&source)
    });
    if !problems.is_empty() {
        problems.iter().for_each(|problem| eprintln!("{problem}"));
        bail!("{} problems", problems.len());
    }
    println!(
        "xtask check: crates are pure; stored shapes are read; the template is current, and keeps every rule; samples, which a test runs, and alarms are there"
    );
    Ok(())
}

fn category_problems(categories: &[&str]) -> Vec<String> {
    let mut known = BTreeSet::new();
    let twice = categories.iter().filter(|category| !known.insert(**category));
    twice
        .map(|category| {
            format!(
                "two aggregates have the category `{category}`, and would share streams: rename one"
            )
        })
        .collect()
}

/// Returns a problem for each aggregate that has no file in `model/shapes`, or that cannot read a
/// stored event or state in its file.
fn shape_problems<L: Aggregates>(root: &Path) -> Result<Vec<String>> {
    struct Check<'r> {
        root: &'r Path,
        folders: Vec<PathBuf>,
        problems: Vec<String>,
    }
    impl Visitor for Check<'_> {
        fn visit<A: Aggregate>(&mut self) {
            let name = format!("model/shapes/{}.json", A::CATEGORY);
            let Some(path) =
                self.folders.iter().map(|folder| folder.join(&name)).find(|path| path.exists())
            else {
                self.problems.push(format!(
                    "there is no crates/apps/<application>/{name}, with the shapes that are stored"
                ));
                return;
            };
            let text = fs::read_to_string(&path).map_err(|error| error.to_string());
            if let Err(problem) = text.and_then(|text| ledgerline::shapes::check::<A>(&text)) {
                let path = path.strip_prefix(self.root).unwrap_or(&path);
                self.problems.push(format!("{}: {problem}", path.display()));
            }
        }
    }
    let applications = fs::read_dir(root.join("crates/apps")).context("crates/apps")?;
    let folders = applications.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    let mut check = Check { root, folders, problems: Vec::new() };
    L::visit(&mut check);
    Ok(check.problems)
}

/// Returns the problems with sample events (rule 13): a sample is missing or unreadable, or no
/// sample event shows a route.
#[must_use]
pub fn sample_problems(source: &Source, manifests: &Manifests, root: &Path) -> Vec<String> {
    let samples = match ledgerline_sam::sample_events::samples_for(source, root) {
        Ok(samples) => samples,
        Err(error) => return vec![format!("rule 13: {error:#}")],
    };
    let shown: BTreeSet<_> =
        samples.iter().filter_map(|sample| sample.event["routeKey"].as_str()).collect();
    let routes = manifests.iter().flat_map(|(binary, manifest)| {
        manifest.endpoints().iter().map(move |endpoint| (binary, &*endpoint.route))
    });
    routes
        .filter(|(_, route)| !shown.contains(route))
        .map(|(binary, route)| format!("rule 13: {EVENTS}/{binary}: no sample event shows {route}"))
        .collect()
}

/// Returns the dependency paths from pure crates to AWS or to a runtime.
fn impurities(metadata: &Metadata) -> Vec<String> {
    let is_impure = |name: &str| {
        ["aws-", "aws_", "lambda-", "lambda_"].iter().any(|begin| name.starts_with(begin))
            || name == "tokio"
    };
    dependency_paths(metadata, is_pure, is_impure, "rule 12")
}

/// Returns the dependency paths from the programs of operators and developers to the emulator. The
/// emulator takes minutes to build, so these programs must build without it.
fn emulator_paths(metadata: &Metadata) -> Vec<String> {
    let small = ["ledger", "ledgerline-operator", "ledgerline-tools", "xtask"];
    let is_small = |package: &Package| small.contains(&package.name.as_str());
    dependency_paths(metadata, is_small, |name| name == "ledgerline-local", "no emulator")
}

/// Returns a problem for each forbidden package that a package of the workspace reaches, with a
/// dependency path to the forbidden one. `from` selects the packages of the workspace.
fn dependency_paths(
    metadata: &Metadata,
    from: impl Fn(&Package) -> bool,
    is_forbidden: impl Fn(&str) -> bool,
    rule: &str,
) -> Vec<String> {
    let names: BTreeMap<&PackageId, &str> =
        metadata.packages.iter().map(|package| (&package.id, package.name.as_str())).collect();
    let dependencies: BTreeMap<&PackageId, Vec<&PackageId>> = metadata
        .resolve
        .iter()
        .flat_map(|resolve| &resolve.nodes)
        .map(|node| {
            let normal = node.deps.iter().filter(|dependency| {
                dependency.dep_kinds.iter().any(|kind| kind.kind == DependencyKind::Normal)
            });
            (&node.id, normal.map(|dependency| &dependency.pkg).collect())
        })
        .collect();
    let mut problems = Vec::new();
    for root in metadata.workspace_packages().into_iter().filter(|package| from(package)) {
        let mut seen = BTreeSet::new();
        let mut paths = vec![vec![&root.id]];
        while let Some(path) = paths.pop() {
            let Some(last) = path.last().copied().filter(|last| seen.insert(*last)) else {
                continue;
            };
            let name = names.get(last).copied().unwrap_or_default();
            if is_forbidden(name) {
                let path: Vec<_> = path.iter().filter_map(|id| names.get(id).copied()).collect();
                problems.push(format!(
                    "{rule}: {} reaches {name}: {}",
                    root.name,
                    path.join(" -> ")
                ));
                continue;
            }
            for dependency in dependencies.get(last).into_iter().flatten().copied() {
                paths.push([path.as_slice(), &[dependency]].concat());
            }
        }
    }
    problems
}

/// Returns the dependencies of the libraries on applications, including those of tests. The
/// libraries must work with any application.
fn upward_dependencies(metadata: &Metadata) -> Vec<String> {
    let packages = metadata.workspace_packages();
    let applications: BTreeSet<&str> = packages
        .iter()
        .filter(|package| is_of_an_application(package) || package.name == "applications")
        .map(|package| package.name.as_str())
        .collect();
    let libraries = packages.iter().filter(|package| is_a_library(package));
    let upwards = libraries.flat_map(|package| {
        let names = package.dependencies.iter().map(|dependency| dependency.name.as_str());
        names.filter(|name| applications.contains(name)).map(move |name| (&package.name, name))
    });
    upwards
        .map(|(library, application)| {
            format!("the library {library} depends on the application {application}: remove the dependency")
        })
        .collect()
}

/// The package of the long proofs, in the workspace of the libraries.
const PROOFS: &str = "ledgerline-proofs";

/// Returns the crates that the functions, a program or the proofs use with other features than the
/// tests. Cargo compiles such a crate and its dependents once for each set of features, which costs
/// minutes in every first build.
fn compiled_twice(metadata: &Metadata) -> Result<Vec<String>> {
    // A package may have several sets of features, because build scripts and macros have their own.
    let features = |arguments: &[&str]| -> Result<BTreeSet<(String, String)>> {
        let mut cargo = cargo();
        cargo
            .args(["tree", "--quiet", "--locked", "--prefix", "none", "--format", "{p}\t{f}"])
            .args(arguments);
        let output = cargo.stderr(Stdio::inherit()).output()?;
        if !output.status.success() {
            bail!("cargo tree ended with {}", output.status);
        }
        let printed = String::from_utf8(output.stdout)?;
        let package = |line: &str| {
            let (package, features) = line.split_once('\t')?;
            Some((package.to_owned(), features.trim_end_matches("(*)").trim().to_owned()))
        };
        Ok(printed.lines().filter_map(package).collect())
    };
    let everything = features(&["--workspace", "--edges", "normal,build,dev"])?;
    let has_proofs = metadata.workspace_packages().iter().any(|package| package.name == PROOFS);
    let mut problems = Vec::new();
    for (group, arguments) in [
        ("the functions", &["--workspace", "--edges", "normal,build"][..]),
        ("local", &["--package", "local", "--edges", "normal,build"]),
        ("ledger", &["--package", "ledger", "--edges", "normal,build"]),
        ("xtask", &["--package", "xtask", "--edges", "normal,build"]),
        ("the proofs", &["--package", PROOFS, "--edges", "normal,build"]),
    ] {
        if arguments.contains(&PROOFS) && !has_proofs {
            continue;
        }
        let others = features(arguments)?.difference(&everything).cloned().collect::<Vec<_>>();
        problems.extend(others.into_iter().map(|(package, features)| {
            format!(
                "{package} is compiled twice: {group} needs it with [{features}], the tests do not"
            )
        }));
    }
    Ok(problems)
}

/// Returns the functions that lack a binary, a resource in the template, or sample events (rule
/// 13).
fn mismatches(metadata: &Metadata) -> Result<Vec<String>> {
    let root = metadata.workspace_root.as_std_path();
    let binaries: BTreeSet<String> = metadata
        .workspace_packages()
        .into_iter()
        .filter(|package| is_of_an_application(package) || package.name == "fanout")
        .flat_map(|package| &package.targets)
        .filter(|target| target.is_bin())
        .map(|target| target.name.clone())
        .collect();
    let source = Source::read(&root.join("template.yaml"))?;
    let template = ledgerline_sam::template::resolve_all(&source)?;
    let resources: BTreeSet<String> =
        template.functions.iter().map(|function| function.binary.clone()).collect();
    let samples = sample_folders(&root.join(EVENTS))?;

    let mut problems = Vec::new();
    for name in binaries.union(&resources).chain(&samples).collect::<BTreeSet<_>>() {
        let places = [
            (binaries.contains(name), "a binary"),
            (resources.contains(name), "a function in template.yaml"),
            (samples.contains(name), "a sample event in events/"),
        ];
        for (_, place) in places.iter().filter(|(present, _)| !present) {
            problems.push(format!("rule 13: {name} has no {}", place.trim_start_matches("a ")));
        }
    }
    Ok(problems)
}

/// Returns the names of the folders with at least one sample event.
fn sample_folders(events: &Path) -> Result<BTreeSet<String>> {
    let mut folders = BTreeSet::new();
    for entry in fs::read_dir(events).with_context(|| events.display().to_string())? {
        let entry = entry?;
        let mut files =
            fs::read_dir(entry.path()).with_context(|| entry.path().display().to_string())?;
        let is_sample = |file: &fs::DirEntry| {
            file.path().extension().is_some_and(|extension| extension == "json")
        };
        if files.any(|file| file.is_ok_and(|file| is_sample(&file))) {
            folders.insert(entry.file_name().to_string_lossy().into_owned());
        }
    }
    Ok(folders)
}

#[cfg(test)]
mod tests {
    use ledgerline::testing::tank::{SHAPES, Tanks};

    use super::*;

    #[test]
    fn a_changed_event_with_the_old_schema_number_is_a_problem() {
        let root = tempfile::tempdir().unwrap();
        let shapes = root.path().join("crates/apps/water/model/shapes");
        fs::create_dir_all(&shapes).unwrap();
        let problems = || shape_problems::<Tanks>(root.path()).unwrap().join("\n");
        assert!(
            problems().contains("there is no crates/apps/<application>/model/shapes/tank.json")
        );
        fs::write(shapes.join("tank.json"), SHAPES).unwrap();
        assert_eq!(problems(), "");
        // This file no longer fits the code, as after a renamed field in the code.
        fs::write(
            shapes.join("tank.json"),
            SHAPES.replace(r#""amount": 5000"#, r#""litres": 5000"#),
        )
        .unwrap();
        let found = problems();
        assert!(
            found.starts_with("crates/apps/water/model/shapes/tank.json: event TankFilled"),
            "{found}"
        );
        assert!(found.contains("has the next schema number"), "{found}");
    }

    #[test]
    fn a_workspace_without_the_test_application_refuses_the_soak() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("src")).unwrap();
        fs::write(root.path().join("src/lib.rs"), "").unwrap();
        let manifest = root.path().join("Cargo.toml");
        fs::write(&manifest, "[package]\nname = \"water\"").unwrap();
        let metadata = MetadataCommand::new().manifest_path(manifest).no_deps().exec().unwrap();
        let refused = soak(&metadata, &[]).unwrap_err().to_string();
        assert!(refused.starts_with("`ledgerline-testing`"), "{refused}");
    }
}
