//! `cargo xtask new`, in a copy of this repository: what it lays down builds, passes, and runs in the local stack.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    reason = "in a test a panic is the report"
)]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

struct Copy {
    root: PathBuf,
    target: PathBuf,
}

impl Copy {
    /// The files of this repository, committed or not, as the first commit of another one.
    fn new() -> Self {
        let here = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).canonicalize().unwrap();
        let target = here.join("target");
        let root = target.join("try-new");
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
            fs::copy(here.join(file), to).unwrap();
        }
        let this = Self { root, target };
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
        // The dependencies are built already; only what is in the copy is built again.
        run(Command::new(env!("CARGO"))
            .current_dir(&self.root)
            .env("CARGO_TARGET_DIR", &self.target)
            .args(arguments))
    }

    /// Lays something down, and says what changed besides new files: added and removed lines, and the file.
    fn lay_down(&self, arguments: &[&str]) -> Vec<String> {
        self.cargo(&[&["xtask", "new"], arguments].concat());
        self.git(&["add", "--all"]);
        let changed = self.git(&["diff", "--cached", "--numstat", "--diff-filter=M"]);
        let changed = changed.lines().map(|line| line.replace('\t', " ")).collect();
        self.commit();
        changed
    }
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let (printed, errors) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}\n{printed}\n{errors}");
    printed.into_owned()
}

/// Only new files, one line in each list of modules, and the template, to which lines are only added. A new queue is one
/// more that the fanout may send to, which its page of permissions, written off the template, has to say.
fn is_all(changed: &[String], lists: &[&str], queue: bool) {
    let (template, others): (Vec<_>, Vec<_>) =
        changed.iter().partition(|line| line.ends_with(" template.yaml"));
    let mut expected: Vec<_> = lists.iter().map(|list| format!("1 0 crates/{list}/src/lib.rs")).collect();
    expected.extend(queue.then(|| "1 0 docs/permissions/FanoutFunction.md".to_owned()));
    assert_eq!(others.into_iter().cloned().collect::<Vec<_>>(), expected);
    assert!(template.len() == 1 && template[0].split(' ').nth(1) == Some("0"), "{template:?}");
}

#[test]
#[ignore = "it builds the workspace a second time: cargo test -p xtask --test new -- --ignored"]
fn what_is_laid_down_builds_passes_and_runs() {
    let copy = Copy::new();
    is_all(&copy.lay_down(&["aggregate", "purchase-order"]), &["commands", "domain"], false);
    is_all(&copy.lay_down(&["projector", "open-orders", "--of", "purchaseorder"]), &["read-models"], false);
    is_all(
        &copy.lay_down(&["projector", "order-history", "--of", "purchaseorder", "--log"]),
        &["read-models"],
        true,
    );
    is_all(
        &copy.lay_down(&["process-manager", "ship-orders", "--of", "purchaseorder"]),
        &["process-managers"],
        true,
    );

    // A name that is taken, or none, leaves nothing behind.
    for wrong in [
        &["aggregate", "purchase-order"][..],
        &["aggregate", "Order"],
        &["projector", "x"],
        &["projector", "x", "--of", "nothing"],
        // Names of others in the domain, in the template, in Rust and in what is laid down.
        &["aggregate", "to-do"],
        &["process-manager", "balances", "--of", "account"],
        &["projector", "fanout", "--of", "account"],
        &["aggregate", "type"],
        &["aggregate", "state"],
        &["process-manager", "x", "--of", "account", "--log"],
    ] {
        let xtask = [&["xtask", "new"], wrong].concat();
        let mut cargo = Command::new(env!("CARGO"));
        let failed = cargo.current_dir(&copy.root).env("CARGO_TARGET_DIR", &copy.target).args(xtask);
        assert!(!failed.output().unwrap().status.success(), "{wrong:?}");
        assert_eq!(copy.git(&["status", "--porcelain"]), "", "{wrong:?}");
    }

    copy.cargo(&["xtask", "check"]);
    copy.cargo(&["fmt", "--all", "--check"]);
    copy.cargo(&["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"]);
    let passed = copy.cargo(&[
        "test",
        "-p",
        "domain",
        "-p",
        "commands",
        "-p",
        "read-models",
        "-p",
        "process-managers",
        "order",
    ]);
    for test in
        ["it_is_created_once", "a_row_shows_the_state", "every_event_is_listed", "every_event_is_looked_at"]
    {
        assert!(passed.contains(test), "{passed}");
    }
    // Every sample is answered, by functions that the local stack runs from the template.
    copy.cargo(&["test", "-p", "local", "--test", "samples"]);
    copy.cargo(&["test", "-p", "proofs", "--test", "short", "every_shape"]);
    fs::remove_dir_all(&copy.root).unwrap();
}
