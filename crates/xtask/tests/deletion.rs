//! Deletes an application in a copy of this repository. The test deletes its folders, its events
//! with their answers, and its two lines in each of two packages. `cargo xtask wire` makes the
//! template without it. No other file changes except `Cargo.lock`. Afterwards, everything compiles,
//! all checks pass, and so do the tests of the packages that know all applications. The tests of the
//! libraries and of the other applications are not repeated, because none of them knows an
//! application that is not its own.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use cargo_metadata::{MetadataCommand, Package};
use ledgerline_sam::{
    build::cargo,
    generate::{self, Application, Deploy},
    manifests,
    template::{self, Source},
};

struct Copy {
    root: PathBuf,
    /// The folder of what cargo has built for this repository.
    built: PathBuf,
}

impl Copy {
    /// Copies the files of this repository, committed or not, as the first commit of another one.
    fn new(name: &str) -> Self {
        let here = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).canonicalize().unwrap();
        let built = here.join("target");
        let root = built.join(name);
        let _ = fs::remove_dir_all(&root);
        let files = run(Command::new("git").current_dir(&here).args([
            "ls-files",
            "--cached",
            "--others",
            "--exclude-standard",
        ]));
        for file in files.lines().filter(|file| here.join(file).exists()) {
            let to = root.join(file);
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            // A link stays one: its target has the links of its own folder.
            match fs::read_link(here.join(file)) {
                Ok(target) => symlink(target, to).unwrap(),
                Err(_) => _ = fs::copy(here.join(file), to).unwrap(),
            }
        }
        let this = Self { root, built };
        // The copy gets its own version, so that its compiled files do not replace those of this
        // repository and of other copies: an xtask that is taken for the copy's would write into
        // this repository. It uses this repository's libraries, by the paths that the workspaces of
        // the tests of the starter use, so that cargo compiles them once for all.
        edit(&this.root.join("Cargo.toml"), |manifest| {
            let (members, rest) = manifest.split_once("\nversion = \"0.1.0\"\n").unwrap();
            let members = members.replacen(", \"crates/lib/ledgerline*\"", "", 1);
            let libraries = format!("path = \"{}/crates/lib/", here.display());
            let rest = rest.replace("path = \"crates/lib/", &libraries);
            format!("{members}\nversion = \"0.1.0-{name}\"\n{rest}")
        });
        this.cargo(&["update", "--workspace", "--offline", "--quiet"]);
        this.git(&["init", "--quiet"]);
        this.commit();
        this
    }

    fn git(&self, arguments: &[&str]) -> String {
        let identity = ["-c", "user.name=test", "-c", "user.email=test@example.com"];
        run(Command::new("git").current_dir(&self.root).args(identity).args(arguments))
    }

    fn commit(&self) {
        self.git(&["add", "--all"]);
        self.git(&["commit", "--quiet", "--message", "before"]);
    }

    fn cargo(&self, arguments: &[&str]) -> String {
        // The dependencies are built already, so cargo builds only the packages of the copy.
        run(cargo()
            .current_dir(&self.root)
            .env("CARGO_TARGET_DIR", self.root.join("target"))
            .env("CARGO_BUILD_BUILD_DIR", &self.built)
            .args(arguments))
    }

    fn npm(&self, arguments: &[&str]) -> String {
        run(Command::new("npm").current_dir(self.root.join("web")).args(arguments))
    }
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let (printed, errors) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}\n{printed}\n{errors}");
    printed.into_owned()
}

fn packages(root: &Path) -> Vec<Package> {
    MetadataCommand::new().current_dir(root).no_deps().exec().unwrap().packages
}

/// The application to delete. `DELETE=todo` chooses another one.
fn application() -> String {
    std::env::var("DELETE").unwrap_or_else(|_| "bank".to_owned())
}

/// Deletes an application as docs/applications.md says.
fn delete(root: &Path, application: &str) {
    let folder = root.join("crates/apps").join(application);
    let functions = functions_of(&folder);
    for function in &functions {
        for folder in ["events", "tests/answers"] {
            fs::remove_dir_all(root.join(folder).join(function)).unwrap();
        }
    }
    fs::remove_dir_all(&folder).unwrap();
    let pages = root.join("web/src").join(application);
    if pages.exists() {
        fs::remove_dir_all(pages).unwrap();
    }
    let module = application.replace('-', "_");
    for (list, begins) in [
        ("applications/Cargo.toml", format!("{application} = ")),
        ("applications/src/lib.rs", format!("        {module}::All::")),
        ("local/Cargo.toml", format!("{application}-functions = ")),
        ("local/src/handlers.rs", format!("    {module}_functions::")),
    ] {
        edit(&root.join("crates").join(list), |list| {
            let others = list.lines().filter(|line| !line.starts_with(&begins));
            others.map(|line| format!("{line}\n")).collect()
        });
    }
}

/// The ids that the template without an application lacks, and `cargo xtask wire` asks for.
fn lost_ids(root: &Path) -> Vec<String> {
    let old = Source::read(&root.join("template.yaml")).unwrap().json();
    let mut manifests = manifests::in_template(&old).unwrap().unwrap();
    let left: BTreeSet<_> = fs::read_dir(root.join("events")).unwrap().map(name).collect();
    manifests.retain(|function, _| left.contains(function));
    let deploy = Deploy::read(root).unwrap();
    let new = generate::template(&Application::read(root, &deploy).unwrap(), &manifests, &deploy);
    let new = Source::parse(&new.unwrap(), Path::new("template.yaml")).unwrap().json();
    let lost = generate::lost_ids(&old, &new, &[]);
    lost.iter().map(|sentence| sentence.split('`').nth(1).unwrap().to_owned()).collect()
}

fn name(entry: std::io::Result<fs::DirEntry>) -> String {
    entry.unwrap().file_name().into_string().unwrap()
}

/// The names of the functions of the application in this folder.
fn functions_of(folder: &Path) -> BTreeSet<String> {
    let binaries = fs::read_dir(folder.join("functions/src/bin")).unwrap();
    binaries
        .map(|file| file.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
        .collect()
}

fn edit(path: &Path, change: impl Fn(&str) -> String) {
    let before = fs::read_to_string(path).unwrap();
    let after = change(&before);
    assert_ne!(before, after, "{} says nothing of it", path.display());
    fs::write(path, after).unwrap();
}

#[test]
#[ignore = "it builds the workspace a second time: cargo test -p xtask --test deletion -- --ignored"]
fn everything_compiles_and_all_checks_pass_without_a_deleted_application() {
    let application = application();
    let copy = Copy::new(&format!("try-without-{application}"));
    delete(&copy.root, &application);
    let lost = lost_ids(&copy.root);
    let removed = lost.iter().flat_map(|id| ["--remove", id]);
    let wire: Vec<_> = ["xtask", "wire"].into_iter().chain(removed).collect();
    // Cargo removes the packages from `Cargo.lock`.
    copy.cargo(&["update", "--workspace", "--offline", "--quiet"]);
    copy.cargo(&wire);
    let touched = copy.git(&["status", "--porcelain"]);
    let others: Vec<_> = touched
        .lines()
        .filter(|line| {
            !["events", "tests/answers", "crates/apps", "web/src"]
                .iter()
                .any(|folder| line.starts_with(&format!(" D {folder}/")))
        })
        .collect();
    let expected = [
        " M Cargo.lock",
        " M crates/applications/Cargo.toml",
        " M crates/applications/src/lib.rs",
        " M crates/local/Cargo.toml",
        " M crates/local/src/handlers.rs",
        " M template.yaml",
    ];
    assert_eq!(others, expected);

    copy.cargo(&["check", "--workspace", "--all-targets", "--quiet"]);
    copy.cargo(&["test", "-p", "applications", "-p", "fanout", "-p", "ledger", "-p", "local"]);
    copy.cargo(&["test", "-p", "xtask", "--test", "repository"]);
    copy.cargo(&["xtask", "check"]);
    copy.cargo(&["xtask", "wire", "--check"]);
    copy.cargo(&["xtask", "schemas"]);
    copy.cargo(&["xtask", "schemas", "--check"]);
    copy.npm(&["ci", "--no-audit", "--no-fund", "--silent"]);
    for script in ["generate", "check", "build"] {
        copy.npm(&["run", script]);
    }
    fs::remove_dir_all(&copy.root).unwrap();
}

/// The libraries work with any application. `cargo xtask check` refuses a dependency of a library on
/// an application, of its tests too.
#[test]
fn no_file_of_a_library_names_an_application() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let names: BTreeSet<_> = packages(&root)
        .into_iter()
        .filter(|package| package.manifest_path.starts_with(root.join("crates/apps")))
        .flat_map(|package| {
            let folder = format!("crates/apps/{}/", package.name.trim_end_matches("-functions"));
            let functions = package.targets.into_iter().filter(|target| target.is_bin());
            let path = format!("{}::", package.name.replace('-', "_"));
            [folder, path]
                .into_iter()
                .chain(functions.map(|function| format!("\"{}\"", function.name)))
        })
        .collect();
    assert!(names.contains("crates/apps/todo/") && names.contains("\"todo-queries\""), "{names:?}");
    let files = run(Command::new("git").current_dir(&root).args(["ls-files", "crates/lib"]));
    let mut found = Vec::new();
    for file in files.lines() {
        // An image is no text.
        let Ok(text) = fs::read_to_string(root.join(file)) else { continue };
        found.extend(names.iter().filter(|name| text.contains(*name)).map(|name| (file, name)));
    }
    assert_eq!(found, []);
}

/// After the deletion of any application, the rest of the template is valid, and no role is left
/// without a function.
#[test]
fn the_template_is_valid_without_any_one_application() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let functions = |source: &Source| {
        let json = source.json();
        let resources = json["Resources"].as_object().unwrap();
        let used_roles: BTreeSet<_> = resources
            .values()
            .filter(|resource| resource["Type"] == "AWS::Serverless::Function")
            .map(|function| function["Properties"]["Role"]["Fn::GetAtt"].to_string())
            .collect();
        let unused_roles: Vec<_> = resources
            .keys()
            .filter(|id| {
                id.ends_with("Role")
                    && !used_roles.iter().any(|used| used.contains(&format!("\"{id}")))
            })
            .collect();
        assert_eq!(unused_roles, Vec::<&String>::new());
        template::resolve_all(source).unwrap().functions.len()
    };
    let whole = Source::read(&root.join("template.yaml")).unwrap();
    let manifests = manifests::in_template(&whole.json()).unwrap().unwrap();
    // What the file says of an application is deleted with it.
    let few = "Metadata: { Ledgerline: { Parts: [Dashboard, WebApp] } }\n";
    let few = Deploy::parse(Path::new("deploy.yaml"), few).unwrap();
    let deploy = Deploy::read(&root).unwrap();
    let facts = Application::read(&root, &deploy).unwrap();
    for application in fs::read_dir(root.join("crates/apps")).unwrap() {
        let application = application.unwrap();
        let name = application.file_name().into_string().unwrap();
        let deleted_functions = functions_of(&application.path());
        let mut manifests = manifests.clone();
        manifests.retain(|function, _| !deleted_functions.contains(function));
        let rest = generate::template(&facts, &manifests, &deploy);
        let rest = rest.or_else(|_| generate::template(&facts, &manifests, &few)).unwrap();
        let rest = Source::parse(&rest, Path::new("template.yaml")).unwrap();
        assert_eq!(functions(&rest) + deleted_functions.len(), functions(&whole), "{name}");
    }
}
