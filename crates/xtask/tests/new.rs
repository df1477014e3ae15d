//! `cargo xtask new`, in a copy of this repository: what it lays down builds, passes, and runs in the local stack.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    reason = "in a test a panic is the report"
)]

use std::{
    fs,
    io::{BufRead, BufReader, Lines},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
};

struct Copy {
    root: PathBuf,
    target: PathBuf,
}

impl Copy {
    /// The files of this repository, committed or not, as the first commit of another one.
    fn new(name: &str) -> Self {
        let here = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).canonicalize().unwrap();
        let target = here.join("target");
        let root = target.join(name);
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
        // As a version of its own: what is compiled of it stands beside what is compiled of this repository and of other copies,
        // and not in its place.
        let manifest = this.root.join("Cargo.toml");
        let ours = fs::read_to_string(&manifest).unwrap();
        let version = format!("\nversion = \"0.1.0-{name}\"");
        let copied = ours.replacen("\nversion = \"0.1.0\"", &version, 1);
        assert_ne!(copied, ours, "an xtask that is taken for the copy's would write into this repository");
        fs::write(&manifest, copied).unwrap();
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
        // The dependencies are built already; only what is in the copy is built again.
        run(Command::new(env!("CARGO"))
            .current_dir(&self.root)
            .env("CARGO_TARGET_DIR", &self.target)
            .args(arguments))
    }

    /// `cargo xtask new`, once it is built: what it knows of the aggregates is compiled into it, and nothing else that it lays
    /// down.
    fn xtask_new(&self, arguments: &[&str]) -> Command {
        let mut xtask = Command::new(self.target.join("debug/xtask"));
        xtask.current_dir(&self.root).arg("new").args(arguments);
        xtask
    }

    /// Lays something down, and says what changed besides new files: added and removed lines, and the file.
    fn lay_down(&self, arguments: &[&str]) -> Vec<String> {
        run(&mut self.xtask_new(arguments));
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

/// Only new files, these lines in lists, and the template, to which lines are only added. A new queue is one more that the
/// fanout may send to, which its page of permissions, written off the template, has to say.
fn is_all(changed: &[String], lists: &[&str], queue: bool) {
    let (template, others): (Vec<_>, Vec<_>) =
        changed.iter().partition(|line| line.ends_with(" template.yaml"));
    let mut expected: Vec<_> = lists.iter().map(|list| format!("1 0 crates/{list}")).collect();
    expected.extend(queue.then(|| "1 0 docs/permissions/FanoutFunction.md".to_owned()));
    assert_eq!(others.into_iter().cloned().collect::<Vec<_>>(), expected);
    assert!(template.len() == 1 && template[0].split(' ').nth(1) == Some("0"), "{template:?}");
}

#[test]
#[ignore = "it builds the workspace a second time: cargo test -p xtask --test new -- --ignored"]
fn what_is_laid_down_builds_passes_and_runs() {
    let copy = Copy::new("try-new");
    copy.cargo(&["build", "-p", "xtask"]);
    // In a new application.
    let aggregate = ["aggregate", "purchase-order", "--in", "web-shop"];
    is_all(&copy.lay_down(&aggregate), &["applications/Cargo.toml"], false);
    // Cargo notes the new packages.
    copy.cargo(&["build", "-p", "xtask"]);
    copy.commit();
    let (model, functions) = ("apps/web-shop/model/src", "apps/web-shop/functions/src");
    let (views, managers) = (format!("{model}/views.rs"), format!("{functions}/process_managers.rs"));
    is_all(&copy.lay_down(&["projector", "open-orders", "--of", "purchaseorder"]), &[&views], false);
    let log_projector = ["projector", "order-history", "--of", "purchaseorder", "--log"];
    is_all(&copy.lay_down(&log_projector), &[&views], true);
    let process_manager = ["process-manager", "ship-orders", "--of", "purchaseorder"];
    is_all(&copy.lay_down(&process_manager), &[&managers], true);
    // The first one of an application.
    let first = ["process-manager", "remind", "--of", "todo"];
    is_all(&copy.lay_down(&first), &["apps/todo/functions/src/lib.rs"], true);

    // A name that is taken, or none, leaves nothing behind.
    for wrong in [
        &["aggregate", "purchase-order", "--in", "web-shop"][..],
        &["aggregate", "cart"],
        &["aggregate", "cart", "--in", "Shop"],
        &["aggregate", "Order", "--in", "web-shop"],
        &["projector", "x", "--of", "account", "--in", "web-shop"],
        &["projector", "x"],
        &["projector", "x", "--of", "nothing"],
        // Names of others in the models, in the template, in Rust and in what is laid down.
        &["aggregate", "to-do", "--in", "web-shop"],
        &["process-manager", "balances", "--of", "account"],
        &["projector", "fanout", "--of", "account"],
        &["aggregate", "type", "--in", "web-shop"],
        &["aggregate", "state", "--in", "web-shop"],
        &["process-manager", "x", "--of", "account", "--log"],
    ] {
        assert!(!copy.xtask_new(wrong).output().unwrap().status.success(), "{wrong:?}");
        assert_eq!(copy.git(&["status", "--porcelain"]), "", "{wrong:?}");
    }

    copy.cargo(&["xtask", "check"]);
    copy.cargo(&["fmt", "--all", "--check"]);
    copy.cargo(&["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"]);
    let passed = copy.cargo(&["test", "-p", "web-shop", "-p", "web-shop-functions"]);
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

/// `cargo run -p local -- --watch`, as somebody uses it who tries a rule out.
#[test]
#[ignore = "it builds the functions three times: cargo test -p xtask --test new an_edit -- --ignored"]
fn an_edit_is_served_without_stopping() {
    let copy = Copy::new("try-watch");
    let mut stack = Watched::start(&copy);
    let account = "/accounts/5f0a3a6e-6a6d-4e0e-9d0e-0a4f0f4b2c11";
    let open = r#"{"accountId": "5f0a3a6e-6a6d-4e0e-9d0e-0a4f0f4b2c11", "owner": "Ada", "currency": "EUR"}"#;
    assert!(stack.post("/accounts", open).contains("version"));
    let overdraw = |stack: &Watched| stack.post(&format!("{account}/debits"), r#"{"amount": 5}"#);
    assert!(overdraw(&stack).contains("does not cover 5"));

    let model = copy.root.join("crates/apps/bank/model/src/account.rs");
    let before = fs::read_to_string(&model).unwrap();
    fs::write(&model, before.replace("does not cover", "is less than")).unwrap();
    stack.line("has changed: building");
    assert!(
        overdraw(&stack).contains("is less than 5"),
        "a request waits for the new code, and finds the data"
    );
    stack.line("functions replaced");

    fs::write(&model, format!("{before} fn")).unwrap();
    stack.line("the old ones go on");
    assert!(overdraw(&stack).contains("is less than 5"), "what does not compile changes nothing");

    drop(stack);
    fs::remove_dir_all(&copy.root).unwrap();
}

/// A local stack that watches the copy.
struct Watched {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
    url: String,
}

impl Watched {
    fn start(copy: &Copy) -> Self {
        let arguments =
            ["run", "-p", "local", "--", "--watch", "--port", "0", "--aws-address", "127.0.0.1:0"];
        let mut cargo = Command::new(env!("CARGO"));
        cargo.current_dir(&copy.root).env("CARGO_TARGET_DIR", &copy.target).args(arguments);
        let mut process = cargo.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut this = Self { process, lines, url: String::new() };
        let ready = this.line("Ready at ");
        this.url = ready.split_once("Ready at ").unwrap().1.split_once(". ").unwrap().0.to_owned();
        this
    }

    /// Waits for a line that contains this.
    fn line(&mut self, part: &str) -> String {
        self.lines.by_ref().map_while(Result::ok).find(|line| line.contains(part)).unwrap()
    }

    fn post(&self, path: &str, body: &str) -> String {
        let client = reqwest::Client::new().post(format!("{}{path}", self.url)).body(body.to_owned());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { client.send().await.unwrap().text().await.unwrap() })
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
