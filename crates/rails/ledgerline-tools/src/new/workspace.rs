//! A workspace of its own: the programs, the template, and one small application with an aggregate,
//! a view of each kind and a query.

use std::{env, fs, path::Path};

use anyhow::{Context, Result, bail};

use ledgerline_sam::template::Source;

use super::{Kind, Known, TEMPLATE, Words, finish, lay_down as lay};
use crate::wire;

/// The files, and what is in them.
const FILES: [(&str, &str); 33] = [
    ("Cargo.toml", text!("workspace/Cargo.toml")),
    ("README.md", text!("workspace/README.md")),
    ("template.yaml", text!("workspace/template.yaml")),
    ("CargoLambda.toml", text!("workspace/CargoLambda.toml")),
    ("samconfig.toml", text!("workspace/samconfig.toml")),
    ("deny.toml", text!("workspace/deny.toml")),
    (".gitignore", text!("workspace/gitignore")),
    (".clippy.toml", text!("workspace/clippy.toml")),
    (".rustfmt.toml", text!("workspace/rustfmt.toml")),
    (".cfn-lint-serverless.yaml", text!("workspace/cfn-lint-serverless.yaml")),
    (".checkov.yaml", text!("workspace/checkov.yaml")),
    (".cargo/config.toml", text!("workspace/cargo-config.toml")),
    (".ci/run", text!("workspace/ci-run")),
    ("docs/runbook.md", text!("workspace/runbook.md")),
    ("events/fanout/commits.json", text!("workspace/fanout-commits.json")),
    ("tests/answers/fanout/commits.json", text!("workspace/fanout-answers.json")),
    ("crates/applications/Cargo.toml", text!("workspace/applications-Cargo.toml")),
    ("crates/applications/src/lib.rs", text!("workspace/applications-lib.rs")),
    ("crates/fanout/Cargo.toml", text!("workspace/fanout-Cargo.toml")),
    ("crates/fanout/src/lib.rs", text!("workspace/fanout-lib.rs")),
    ("crates/fanout/src/main.rs", text!("workspace/fanout-main.rs")),
    ("crates/handlers/Cargo.toml", text!("workspace/handlers-Cargo.toml")),
    ("crates/handlers/src/main.rs", text!("workspace/handlers-main.rs")),
    ("crates/ledger/Cargo.toml", text!("workspace/ledger-Cargo.toml")),
    ("crates/ledger/src/main.rs", text!("workspace/ledger-main.rs")),
    ("crates/local/Cargo.toml", text!("workspace/local-Cargo.toml")),
    ("crates/local/src/main.rs", text!("workspace/local-main.rs")),
    ("crates/local/tests/samples.rs", text!("workspace/local-samples.rs")),
    ("crates/proofs/Cargo.toml", text!("workspace/proofs-Cargo.toml")),
    ("crates/proofs/src/main.rs", text!("workspace/proofs-main.rs")),
    ("crates/xtask/Cargo.toml", text!("workspace/xtask-Cargo.toml")),
    ("crates/xtask/src/main.rs", text!("workspace/xtask-main.rs")),
    ("crates/apps/{{app}}/functions/tests/scenario.rs", text!("workspace/scenario.rs")),
];

/// The packages of the rails.
const RAILS: [&str; 10] = [
    "ledgerline",
    "ledgerline-dynamodb",
    "ledgerline-lambda",
    "ledgerline-local",
    "ledgerline-operator",
    "ledgerline-proofs",
    "ledgerline-sam",
    "ledgerline-tank",
    "ledgerline-testing",
    "ledgerline-tools",
];

/// The manifests of the functions that are laid down. A test compares them with what the functions
/// print, because to build the functions takes minutes in a new workspace.
const MANIFESTS: &str = text!("workspace/manifest.json");

/// Lays it down in this folder, which must be new or empty. Its last part is the name of the
/// application.
pub(crate) fn lay_down(folder: &Path) -> Result<()> {
    if folder.read_dir().is_ok_and(|mut entries| entries.next().is_some()) {
        bail!("{} is there already: choose another folder", folder.display());
    }
    let application = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
    if application.is_empty() {
        bail!("name the folder: its last part becomes the name of the application");
    }
    super::check_name(&application)?;
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let folder = folder.canonicalize()?;
    let rails = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."));
    let item = Words::named("item", "item", &application)
        .with("rails", rails_of(rails, &folder))
        .with("license", String::new())
        .with("folder", folder.display().to_string());
    for (path, text) in FILES {
        let path = folder.join(item.fill(path).trim());
        fs::create_dir_all(path.parent().unwrap_or(&folder))?;
        fs::write(&path, item.fill(text)).with_context(|| path.display().to_string())?;
    }
    make_executable(&folder.join(".ci/run"))?;
    // The same versions of dependencies as those that the rails were tested with.
    let lock = rails.join("../../Cargo.lock");
    if lock.exists() {
        fs::copy(lock, folder.join("Cargo.lock"))?;
    }
    env::set_current_dir(&folder)?;
    lay(Kind::Aggregate, &item, false)?;
    let known = Known {
        application: application.clone(),
        name: "Item".into(),
        module: "item".into(),
        category: "item".into(),
        events: vec!["ItemCreated".into(), "ItemRenamed".into()],
        schema: 1,
    };
    for (kind, name, log) in [
        (Kind::Projector, "items", false),
        (Kind::Projector, "item-history", true),
        (Kind::Query, "items", false),
    ] {
        lay(kind, &Words::named(name, "item", &application).about(&known)?, log)?;
    }
    let manifests = ledgerline_sam::wire::read(MANIFESTS)?;
    let template = Path::new(TEMPLATE);
    wire::write(template, &Source::read(template)?, &manifests)?;
    finish()?;
    super::next_steps(Kind::Workspace, &item);
    Ok(())
}

/// The dependencies on the rails: by path where their sources are beside this one's, else by
/// version.
fn rails_of(rails: &Path, folder: &Path) -> String {
    let beside = rails.join("ledgerline/Cargo.toml").exists();
    let line = |name: &&str| {
        if beside {
            let path = rails.join(name);
            let path = path.canonicalize().unwrap_or(path);
            // No path leads from one drive to another.
            let path = pathdiff::diff_paths(&path, folder).unwrap_or(path);
            format!("{name} = {{ path = {:?} }}", path.display().to_string())
        } else {
            format!("{name} = \"{}\"", env!("CARGO_PKG_VERSION"))
        }
    };
    RAILS.iter().map(line).collect::<Vec<_>>().join("\n")
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

    use super::*;

    /// A new workspace, for the tests of checks.
    pub(crate) static WORKSPACE: LazyLock<PathBuf> = LazyLock::new(|| {
        let folder = tempfile::tempdir().unwrap().keep().join("shop");
        lay_down(&folder).unwrap();
        folder
    });

    /// Where the rails are developed: what this workspace has is what a new one begins with.
    #[test]
    fn what_a_new_workspace_has_of_this_one_is_the_same() {
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
            "crates/proofs/src/main.rs",
            "crates/xtask/src/main.rs",
        ] {
            let read = |root: &Path| fs::read_to_string(root.join(path)).unwrap();
            assert_eq!(read(&WORKSPACE), read(&here), "{path}");
        }
        // The lists name the applications of each.
        for (path, listed) in [
            ("crates/applications/src/lib.rs", "::All::visit(visitor);"),
            ("crates/handlers/src/main.rs", "::HANDLERS,"),
        ] {
            let read = |root: &Path| fs::read_to_string(root.join(path)).unwrap();
            let without = |text: String| -> Vec<String> {
                text.lines().filter(|line| !line.ends_with(listed)).map(ToOwned::to_owned).collect()
            };
            assert_eq!(without(read(&WORKSPACE)), without(read(&here)), "{path}");
            assert!(read(&WORKSPACE).contains("    shop"), "{path}");
        }
        // Each dependency, lint and profile is one of ours.
        let ours = fs::read_to_string(here.join("Cargo.toml")).unwrap();
        let theirs = fs::read_to_string(WORKSPACE.join("Cargo.toml")).unwrap();
        let rest = theirs.split_once("applications = ").unwrap().1;
        for line in rest.lines() {
            assert!(ours.contains(line), "{line}");
        }
        let profiles = |manifest: &str| manifest.split_once("[profile.dev]").unwrap().1.to_owned();
        assert_eq!(profiles(&theirs), profiles(&ours));
        // And each entry of the runbook, but for names.
        let runbook = |root: &Path| fs::read_to_string(root.join("docs/runbook.md")).unwrap();
        let headings = |text: &str| -> Vec<String> {
            text.lines().filter(|line| line.starts_with("## ")).map(ToOwned::to_owned).collect()
        };
        let ours = headings(&runbook(&here));
        assert!(headings(&runbook(&WORKSPACE)).iter().all(|heading| ours.contains(heading)));
    }
}
