//! A new workspace: the programs, the template, and one small application with an aggregate, a view
//! of each kind and a query.

use std::{fs, path::Path};

use anyhow::{Context, Result, bail};
use ledgerline::manifest::Manifests;
use ledgerline_sam::template::Source;

use super::{
    Store,
    change::{Change, TEMPLATE},
    facts::Facts,
    finish,
    names::{self, Names},
    parts,
    starter::{self, AGGREGATE, APPLICATION, CONTRACT, LOG, MANIFESTS, MODEL, STATES},
};
use crate::{
    schemas::{self, Types},
    wire,
};

/// The packages of the libraries.
const LIBRARIES: [&str; 11] = [
    "ledgerline",
    "ledgerline-dynamodb",
    "ledgerline-lambda",
    "ledgerline-local",
    "ledgerline-operator",
    "ledgerline-proofs",
    "ledgerline-s3",
    "ledgerline-sam",
    "ledgerline-tank",
    "ledgerline-testing",
    "ledgerline-tools",
];

/// The functions of a new workspace.
const FUNCTIONS: [&str; 5] = [
    "fanout",
    "stock-cards-projector",
    "stock-cards-queries",
    "stock-item-commands",
    "stock-journal-projector",
];

/// Creates a workspace in this folder, which must be new or empty. The last part of the folder's
/// path is the name of the application.
pub(crate) fn lay_down(folder: &Path) -> Result<()> {
    if folder.read_dir().is_ok_and(|mut entries| entries.next().is_some()) {
        bail!("{} exists already: choose another folder", folder.display());
    }
    let application =
        folder.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
    if application.is_empty() {
        bail!("name the folder: its last part becomes the name of the application");
    }
    names::check(&application)?;
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let folder = folder.canonicalize()?;
    let names = Names::default()
        .name(APPLICATION, &application)
        .aggregate(AGGREGATE, "item", "Item", "item")
        .name(STATES, "items")
        .name(LOG, "item-history");
    small(&folder, &names)?;
    finish(&folder)?;
    let folder = folder.display();
    println!(
        "\nCreated in {folder}, with one application, {application}. Next:
  run it          cd {folder} && cargo run -p local
  test it         cargo test --workspace
  read on         README.md"
    );
    Ok(())
}

/// Creates a small workspace: an aggregate, a state view with a query, and a log view.
fn small(folder: &Path, names: &Names) -> Result<()> {
    base(folder, names)?;
    let mut change = Change::new(folder, names.clone());
    parts::aggregate(&mut change)?;
    let shapes = format!("{MODEL}/shapes/stockitem.json");
    let facts = Facts::new(&names.rename("stockitem"), &names.rename(starter::file(&shapes)?))?;
    parts::state_projector(&mut change, &facts, Store::Dynamodb)?;
    parts::log_projector(&mut change, &facts, Store::Dynamodb)?;
    change.make()?;
    let mut change = Change::new(folder, names.clone());
    parts::state_query(&mut change)?;
    change.make()?;
    // The functions are not built here, because that takes minutes in a new workspace. A test
    // compares these manifests with the manifests that the functions print.
    let manifests: Manifests = serde_json::from_str(starter::file(MANIFESTS)?)?;
    let manifests: Manifests =
        manifests.into_iter().filter(|(name, _)| FUNCTIONS.contains(&name.as_str())).collect();
    let manifests =
        ledgerline_sam::manifests::read(&names.rename(&serde_json::to_string(&manifests)?))?;
    let template = folder.join(TEMPLATE);
    fs::write(&template, wire::make_template(folder, &manifests)?)?;
    let mut types: Types = serde_json::from_str(&names.rename(starter::file(CONTRACT)?))?;
    types.retain(&manifests);
    schemas::write_all(folder, &types.contract(&Source::read(&template)?, &manifests, folder)?)
}

/// Writes the files that every workspace has.
fn base(folder: &Path, names: &Names) -> Result<()> {
    let libraries = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."));
    for (path, text) in starter::base()? {
        let file = folder.join(names.rename(&path));
        let text = match path.as_str() {
            "Cargo.toml" => with_libraries(&text, libraries, folder),
            _ => text,
        };
        fs::create_dir_all(file.parent().unwrap_or(folder))?;
        fs::write(&file, names.rename(&text)).with_context(|| file.display().to_string())?;
    }
    make_executable(&folder.join(".ci/run"))?;
    // Use the versions of dependencies with which the libraries were tested.
    let lock = libraries.join("../../Cargo.lock");
    if lock.exists() {
        fs::copy(lock, folder.join("Cargo.lock"))?;
    }
    Ok(())
}

/// Returns the manifest with its dependencies on the libraries: by path if the folder `libraries`
/// has their sources, otherwise by the version of this tool.
fn with_libraries(manifest: &str, libraries: &Path, folder: &Path) -> String {
    let beside = libraries.join("ledgerline/Cargo.toml").exists();
    let line = |line: &str| {
        let name = LIBRARIES.iter().find(|name| line.starts_with(&format!("{name} = ")));
        let Some(name) = name else { return format!("{line}\n") };
        if beside {
            let path = libraries.join(name);
            let path = path.canonicalize().unwrap_or(path);
            // No relative path leads from one drive to another.
            let path = pathdiff::diff_paths(&path, folder).unwrap_or(path);
            format!("{name} = {{ path = {:?} }}\n", path.display().to_string())
        } else {
            format!("{name} = \"{}\"\n", env!("CARGO_PKG_VERSION"))
        }
    };
    manifest.lines().map(line).collect()
}

#[cfg(unix)]
fn make_executable(path: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(0o755))?)
}

#[cfg(not(unix))]
fn make_executable(_: &Path) -> Result<()> {
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use std::{path::PathBuf, sync::LazyLock};

    use super::{
        super::{Kind, runbook::RUNBOOK},
        *,
    };

    /// A new workspace, for the tests of checks.
    pub(crate) static WORKSPACE: LazyLock<PathBuf> = LazyLock::new(|| {
        let folder = tempfile::tempdir().unwrap().keep().join("shop");
        lay_down(&folder).unwrap();
        folder
    });

    /// The part for operators and the first subscription both add `$all`. The result does not
    /// depend on which of the two comes first.
    #[test]
    fn operators_and_subscriptions_make_the_same_files_in_either_order() {
        let shapes = starter::file(&format!("{MODEL}/shapes/stockitem.json")).unwrap();
        let facts = &Facts::new("stockitem", shapes).unwrap();
        let laid_down = |kinds: [Kind; 2]| -> Vec<String> {
            let folder = tempfile::tempdir().unwrap();
            small(folder.path(), &Names::default()).unwrap();
            for kind in kinds {
                let mut change = Change::new(folder.path(), Names::default());
                if kind == Kind::Operators {
                    parts::operators(&mut change).unwrap();
                } else {
                    parts::subscription(&mut change, facts).unwrap();
                }
                change.make().unwrap();
            }
            let files = ["crates/fanout/Cargo.toml", "crates/fanout/src/lib.rs"];
            files.map(|file| fs::read_to_string(folder.path().join(file)).unwrap()).to_vec()
        };
        let first = laid_down([Kind::Operators, Kind::Subscription]);
        assert_eq!(first, laid_down([Kind::Subscription, Kind::Operators]));
    }

    /// All parts together make the starter. So the code that `cargo xtask new` writes is the code
    /// that is compiled and tested there.
    #[test]
    fn the_parts_of_the_starter_make_the_starter() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let names = Names::default();
        base(folder, &names).unwrap();
        let shapes = starter::file(&format!("{MODEL}/shapes/stockitem.json")).unwrap();
        let facts = &Facts::new("stockitem", shapes).unwrap();
        let lay_down = |part: &dyn Fn(&mut Change) -> Result<()>| {
            let mut change = Change::new(folder, names.clone());
            part(&mut change).unwrap();
            change.make().unwrap();
        };
        lay_down(&parts::aggregate);
        lay_down(&|change| parts::state_projector(change, facts, Store::Dynamodb));
        lay_down(&|change| parts::log_projector(change, facts, Store::Dynamodb));
        lay_down(&|change| parts::sums_projector(change, facts, Store::Dynamodb));
        lay_down(&parts::state_query);
        lay_down(&parts::log_query);
        // The view with a list begins like every state view.
        let mut listed = Change::new(folder, names.clone().name(STATES, starter::LISTED));
        parts::state_projector(&mut listed, facts, Store::Dynamodb).unwrap();
        listed.make().unwrap();
        lay_down(&|change| parts::listed_query(change, "createdBy"));
        // The view on the bus begins like every state view, too.
        let mut on_bus = Change::new(folder, names.clone().name(STATES, starter::ON_BUS));
        parts::bus_projector(&mut on_bus, facts).unwrap();
        on_bus.make().unwrap();
        lay_down(&|change| parts::process_manager(change, facts));
        // No command adds the aggregate that gets commands only from a process manager.
        let commanded =
            [format!("{MODEL}/src/price_tag.rs"), format!("{MODEL}/shapes/pricetag.json")];
        lay_down(&|change| change.copy(&commanded));
        lay_down(&|change| parts::commanding(change, facts));
        lay_down(&|change| parts::subscription(change, facts));
        lay_down(&parts::operators);
        finish(folder).unwrap();

        let of_commanded =
            |line: &&str| !line.contains("price_tag::PriceTag") && *line != "pub mod price_tag;";
        for path in starter::paths() {
            // Tests of their own compare the contract and the runbook.
            if [CONTRACT, MANIFESTS, RUNBOOK].contains(&path.as_str()) {
                continue;
            }
            let laid_down = fs::read_to_string(folder.join(&path)).expect(&path);
            let mut expected = starter::file(&path).unwrap().to_owned();
            if path == "Cargo.toml" {
                let libraries = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
                expected = with_libraries(&expected, libraries, folder);
            }
            if path.ends_with("proofs.rs") {
                let history =
                    starter::cut(&expected, "/// Price tag: ", &["/// Stock item: "]).unwrap();
                expected = expected.replace(history, "");
            }
            let expected: Vec<_> = expected.lines().filter(of_commanded).collect();
            let laid_down: Vec<_> = laid_down.lines().collect();
            let differ =
                laid_down.iter().zip(&expected).find(|(laid_down, expected)| laid_down != expected);
            assert_eq!((differ, laid_down.len()), (None, expected.len()), "{path}");
        }
    }

    #[test]
    fn a_process_manager_sends_nothing_at_first_to_an_aggregate_with_commands_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        base(folder.path(), &Names::default()).unwrap();
        let shapes = starter::file(&format!("{MODEL}/shapes/stockitem.json")).unwrap();
        let facts = &Facts::new("stockitem", shapes).unwrap();
        for part in [&parts::aggregate, &|change: &mut Change| parts::commanding(change, facts)]
            as [&dyn Fn(&mut Change) -> Result<()>; 2]
        {
            let mut change = Change::new(folder.path(), Names::default());
            part(&mut change).unwrap();
            change.make().unwrap();
        }
        let path = format!("{}/src/process_managers/stock_labels.rs", starter::FUNCTIONS);
        let text = fs::read_to_string(folder.path().join(path)).unwrap();
        assert!(!text.contains("Create") && !text.contains("PriceTagName"), "{text}");
        assert!(text.contains("Invalid> {\n    Ok(None)\n}"), "{text}");
    }

    /// A new workspace begins with the same common files as ledgerline's own repository.
    #[test]
    fn a_new_workspace_has_the_same_common_files_as_this_one() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
        for path in [
            ".gitignore",
            ".clippy.toml",
            ".rustfmt.toml",
            ".cfn-lint-serverless.yaml",
            ".checkov.yaml",
            ".cargo/config.toml",
            "crates/fanout/src/main.rs",
            "crates/local/src/main.rs",
            "crates/local/tests/samples.rs",
            "crates/xtask/src/main.rs",
            "web/client/index.ts",
        ] {
            let read = |root: &Path| fs::read_to_string(root.join(path)).unwrap();
            assert_eq!(read(&WORKSPACE), read(&here), "{path}");
        }
        // These files differ in the list of applications.
        for (path, listed) in [
            ("crates/applications/src/lib.rs", "::All::visit(visitor);"),
            ("crates/local/src/handlers.rs", "::HANDLERS,"),
        ] {
            let read = |root: &Path| fs::read_to_string(root.join(path)).unwrap();
            let without = |text: String| -> Vec<String> {
                text.lines().filter(|line| !line.ends_with(listed)).map(ToOwned::to_owned).collect()
            };
            assert_eq!(without(read(&WORKSPACE)), without(read(&here)), "{path}");
            assert!(read(&WORKSPACE).contains("    shop"), "{path}");
        }
        // This repository has each dependency, lint and profile of a new workspace.
        let ours = fs::read_to_string(here.join("Cargo.toml")).unwrap();
        let theirs = fs::read_to_string(WORKSPACE.join("Cargo.toml")).unwrap();
        let rest = theirs.split_once("applications = ").unwrap().1;
        for line in rest.lines() {
            assert!(ours.contains(line), "{line}");
        }
        let profiles = |manifest: &str| manifest.split_once("[profile.dev]").unwrap().1.to_owned();
        assert_eq!(profiles(&theirs), profiles(&ours));
    }
}
