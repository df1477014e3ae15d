//! A workspace in the target folder, and the commands that tests run in it.

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use ledgerline_sam::build::remove_package_variables;

pub(super) struct Workspace {
    pub(super) root: PathBuf,
    /// The folder of what cargo has built for this repository. Cargo builds only the packages of the
    /// workspace and, once for all workspaces, the libraries.
    pub(super) built: PathBuf,
}

impl Workspace {
    /// Creates a workspace under the target folder, with `cargo ledgerline new`, which needs no
    /// clone.
    pub(super) fn new(name: &str) -> Self {
        let built = Self::built();
        let folder = built.join(name);
        let root = folder.join("shop");
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(&folder).unwrap();
        let cargo_ledgerline = Command::new(env!("CARGO_BIN_EXE_cargo-ledgerline"))
            .current_dir(folder)
            .args(["ledgerline", "new", "shop"])
            .output()
            .unwrap();
        assert!(cargo_ledgerline.status.success(), "{cargo_ledgerline:?}");
        let this = Self { root, built };
        this.set_version(name);
        this.git(&["init", "--quiet"]);
        this.commit();
        this
    }

    /// Copies the starter into the target folder.
    pub(super) fn starter() -> Self {
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).canonicalize().unwrap();
        let built = Self::built();
        let this = Self { root: built.join("starter"), built };
        let _ = fs::remove_dir_all(&this.root);
        copy(&here.join("starter"), &this.root);
        let manifest = this.root.join("Cargo.toml");
        let text = fs::read_to_string(&manifest).unwrap();
        let libraries = format!("path = \"{}/", here.parent().unwrap().display());
        fs::write(&manifest, text.replace("path = \"../../", &libraries)).unwrap();
        fs::copy(here.join("../../../Cargo.lock"), this.root.join("Cargo.lock")).unwrap();
        this.set_version("starter");
        this
    }

    fn built() -> PathBuf {
        let here = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../.."));
        here.canonicalize().unwrap().join("target")
    }

    fn set_version(&self, name: &str) {
        // The workspace gets its own version, so that its compiled packages do not replace those of
        // this repository and of other workspaces.
        let manifest = self.root.join("Cargo.toml");
        let laid_down = fs::read_to_string(&manifest).unwrap();
        let versioned = laid_down.replacen(
            "\nversion = \"0.1.0\"",
            &format!("\nversion = \"0.1.0-{name}\""),
            1,
        );
        assert_ne!(versioned, laid_down);
        fs::write(&manifest, versioned).unwrap();
    }

    pub(super) fn git(&self, arguments: &[&str]) -> String {
        let identity = ["-c", "user.name=test", "-c", "user.email=test@example.com"];
        run(Command::new("git").current_dir(&self.root).args(identity).args(arguments))
    }

    pub(super) fn commit(&self) {
        self.git(&["add", "--all"]);
        self.git(&["commit", "--quiet", "--message", "before"]);
    }

    /// Returns a command in the workspace. Its own target folder has its programs, because those of
    /// this repository have the same names.
    pub(super) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(&self.root)
            .env("CARGO_TARGET_DIR", self.root.join("target"))
            .env("CARGO_BUILD_BUILD_DIR", &self.built);
        remove_package_variables(&mut command);
        command
    }

    pub(super) fn cargo(&self, arguments: &[&str]) -> String {
        run(self.command(env!("CARGO")).args(arguments))
    }

    /// Returns a command of the program `xtask` that was built last. The program contains the
    /// aggregates, so a test builds it again after a new aggregate, and after no other part.
    pub(super) fn xtask(&self, arguments: &[&str]) -> Command {
        let mut xtask = self.command(self.root.join("target/debug/xtask"));
        xtask.args(arguments);
        xtask
    }

    /// Adds a part. Returns the changed files, without new files: the numbers of added and removed
    /// lines, and the path.
    pub(super) fn lay_down(&self, arguments: &[&str]) -> Vec<String> {
        run(&mut self.xtask(&[&["new"], arguments].concat()));
        self.git(&["add", "--all"]);
        let changed = self.git(&["diff", "--cached", "--numstat", "--diff-filter=M"]);
        let changed = changed.lines().map(|line| line.replace('\t', " ")).collect();
        self.commit();
        changed
    }

    /// Applies the diffs in a folder, in the order of their names. Returns their number.
    pub(super) fn apply(&self, folder: &Path) -> usize {
        let mut diffs: Vec<_> =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        diffs.sort();
        diffs.iter().map(|diff| self.apply_change(&fs::read_to_string(diff).unwrap())).count()
    }

    /// Applies a change in git's format.
    pub(super) fn apply_change(&self, change: &str) {
        let patch = self.root.with_extension("patch");
        fs::write(&patch, change.to_owned() + "\n").unwrap();
        self.git(&["apply", &patch.display().to_string()]);
    }

    /// Runs the commands that the README of the workspace names and its CI runs. Returns the output
    /// of the tests.
    pub(super) fn passes(&self) -> String {
        self.cargo(&["fmt", "--check"]);
        self.cargo(&["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"]);
        self.cargo(&["xtask", "check"]);
        self.cargo(&["xtask", "wire", "--check"]);
        self.cargo(&["xtask", "schemas", "--check"]);
        self.cargo(&["test", "--workspace"])
    }
}

/// Copies a folder. A manifest named `_Cargo.toml`, as in the starter, gets the name that cargo
/// expects.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let (entry, name) = entry.map(|entry| (entry.path(), entry.file_name())).unwrap();
        let to = to.join(if name == "_Cargo.toml" { "Cargo.toml".into() } else { name });
        if entry.is_dir() {
            copy(&entry, &to);
        } else {
            fs::copy(entry, to).unwrap();
        }
    }
}

pub(super) fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let (printed, errors) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}\n{printed}\n{errors}");
    printed.into_owned()
}
