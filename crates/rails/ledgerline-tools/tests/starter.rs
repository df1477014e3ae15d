//! A new workspace as its user gets it: it builds, passes its tests and runs, and what is laid down
//! in it does so too.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    reason = "in a test a panic is the report"
)]

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader, Lines},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
};

use serde_json::Value;

struct Workspace {
    root: PathBuf,
    target: PathBuf,
}

impl Workspace {
    /// Lays a workspace down under the target folder, with `cargo ledgerline new`, which needs no
    /// clone.
    fn new(name: &str) -> Self {
        let here = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../..")).canonicalize().unwrap();
        // The dependencies are built already in this target folder. Only the packages of the
        // workspace are built.
        let target = here.join("target");
        let root = target.join(name).join("shop");
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(target.join(name)).unwrap();
        let cargo_ledgerline = Command::new(env!("CARGO_BIN_EXE_cargo-ledgerline"))
            .current_dir(target.join(name))
            .args(["ledgerline", "new", "shop"])
            .output()
            .unwrap();
        assert!(cargo_ledgerline.status.success(), "{cargo_ledgerline:?}");
        let this = Self { root, target };
        // The workspace gets a version of its own, so that what is compiled of it does not replace
        // what is compiled of this repository and of other workspaces.
        let manifest = this.root.join("Cargo.toml");
        let laid_down = fs::read_to_string(&manifest).unwrap();
        let versioned =
            laid_down.replacen("\nversion = \"0.1.0\"", &format!("\nversion = \"0.1.0-{name}\""), 1);
        assert_ne!(versioned, laid_down);
        fs::write(&manifest, versioned).unwrap();
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
        run(Command::new(env!("CARGO"))
            .current_dir(&self.root)
            .env("CARGO_TARGET_DIR", &self.target)
            .args(arguments))
    }

    /// The command `cargo xtask new`, of the program that was built last. It is built again only
    /// after a new aggregate: of all that it lays down, only aggregates are compiled into it.
    fn xtask_new(&self, arguments: &[&str]) -> Command {
        let mut xtask = Command::new(self.target.join("debug/xtask"));
        // What operators need depends on what the functions say, which are built for it.
        xtask.current_dir(&self.root).env("CARGO_TARGET_DIR", &self.target).arg("new").args(arguments);
        xtask
    }

    /// Lays something down. The result is the changed files, without new ones: the numbers of added
    /// and removed lines, and the path.
    fn lay_down(&self, arguments: &[&str]) -> Vec<String> {
        let before = self.written_by_hand();
        run(&mut self.xtask_new(arguments));
        let after = self.written_by_hand();
        let mut rest = after.iter();
        let lost = before.iter().find(|line| !rest.any(|kept| kept == *line));
        assert_eq!(lost, None, "lines are only added to what is written by hand in the template");
        self.git(&["add", "--all"]);
        let changed = self.git(&["diff", "--cached", "--numstat", "--diff-filter=M"]);
        let changed = changed.lines().map(|line| line.replace('\t', " ")).collect();
        self.commit();
        changed
    }

    /// The lines of the template outside of its generated blocks.
    fn written_by_hand(&self) -> Vec<String> {
        let template = fs::read_to_string(self.root.join("template.yaml")).unwrap();
        let mut parts = template.split("# <generated ");
        let first = parts.next().unwrap();
        let rest = parts.map(|part| part.split_once("# </generated>").unwrap().1);
        [first].into_iter().chain(rest).flat_map(str::lines).map(ToOwned::to_owned).collect()
    }

    /// Applies the changes in a document, one after the other. The result is their number.
    fn apply(&self, document: &Path) -> usize {
        let text = fs::read_to_string(document).unwrap();
        let blocks = text.split("```diff\n").skip(1).map(|block| block.split("```").next().unwrap());
        let patch = self.root.with_extension("patch");
        let applied = blocks.map(|block| {
            fs::write(&patch, block).unwrap();
            self.git(&["apply", &patch.display().to_string()]);
        });
        applied.count()
    }

    /// Runs the commands that the README of the workspace names, and that its CI runs.
    fn passes(&self) -> String {
        self.cargo(&["fmt", "--check"]);
        self.cargo(&["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"]);
        self.cargo(&["xtask", "check"]);
        self.cargo(&["xtask", "wire", "--check"]);
        self.cargo(&["test", "--workspace"])
    }
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let (printed, errors) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}\n{printed}\n{errors}");
    printed.into_owned()
}

/// Checks that nothing else changed than these lists, the list of functions, the proofs of the
/// application, and what `cargo xtask wire` writes.
fn is_all(changed: &[String], lists: &[&str]) {
    let (wired, others): (Vec<_>, Vec<_>) = changed.iter().partition(|line| is_wired(line));
    let others: Vec<_> =
        others.into_iter().filter(|line| !line.ends_with("/tests/proofs.rs")).cloned().collect();
    let functions = ["shop/functions/src/lib.rs"];
    let lists = functions.iter().chain(lists);
    let mut expected: Vec<_> = lists.map(|list| format!("1 0 crates/apps/{list}")).collect();
    // The diff is in the order of paths.
    expected.sort_unstable_by(|a, b| a[4..].cmp(&b[4..]));
    assert_eq!(others, expected);
    assert_eq!(wired.len(), 2, "{wired:?}");
}

/// Whether a changed file is one that `cargo xtask wire` writes.
fn is_wired(line: &str) -> bool {
    line.ends_with(" template.yaml") || line.ends_with(" manifest.json")
}

#[test]
#[ignore = "it builds a workspace: cargo test -p ledgerline-tools --test starter -- --ignored"]
fn a_new_workspace_builds_passes_and_grows() {
    let shop = Workspace::new("try-shop");
    let written = shop.written_by_hand().len();
    assert!(written <= 600, "a reader finds everything that is written by hand in {written} lines");
    let passed = shop.passes();
    for test in ["an_item_is_created_renamed_and_shown", "every_sample_event", "whatever_the_delivery"] {
        assert!(passed.contains(test), "{passed}");
    }
    // The tests of slips in the wiring do not build the functions: they read the manifests of a new
    // workspace, which must be what the functions print.
    let manifests: BTreeMap<String, Value> =
        serde_json::from_str(include_str!("../new/workspace/manifest.json.txt")).unwrap();
    for (function, manifest) in manifests {
        let said = run(Command::new(shop.target.join("debug").join(&function)).arg("--manifest"));
        assert_eq!(
            serde_json::from_str::<Value>(&said).unwrap(),
            manifest,
            "{function}: new/workspace/manifest.json.txt is not what it says"
        );
    }
    // Cargo has written the packages of the workspace into the lock file.
    shop.commit();
    let recipes = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/recipes.md"));
    assert_eq!(shop.apply(recipes), 8);
    shop.cargo(&["xtask", "wire"]);
    shop.commit();

    let (model, functions) = ("shop/model/src", "shop/functions/src");
    let (views, queries) = (format!("{model}/views.rs"), format!("{functions}/queries.rs"));
    let aggregate = ["aggregate", "purchase-order", "--in", "shop"];
    let changed = shop.lay_down(&aggregate);
    assert!(changed.contains(&format!("2 0 crates/apps/{model}/lib.rs")), "{changed:?}");
    // The aggregates are compiled into xtask.
    shop.cargo(&["build", "-p", "xtask"]);
    is_all(&shop.lay_down(&["projector", "open-orders", "--of", "purchaseorder"]), &[&views]);
    is_all(&shop.lay_down(&["query", "open-orders", "--of", "purchaseorder"]), &[&queries]);
    // A second view of the same aggregate, named like the application.
    is_all(&shop.lay_down(&["projector", "shop", "--of", "purchaseorder"]), &[&views]);
    let log = |kind| [kind, "order-log", "--of", "purchaseorder", "--log"];
    is_all(&shop.lay_down(&log("projector")), &[&views]);
    is_all(&shop.lay_down(&log("query")), &[&queries]);
    // The first process manager brings a module with it: one more line in the list of modules,
    // which is in the same file.
    let first = ["process-manager", "ship-orders", "--of", "purchaseorder"];
    let changed: Vec<_> = shop.lay_down(&first);
    let module = |line: &String| {
        line.replace("2 0 crates/apps/shop/functions/src/lib.rs", "1 0 crates/apps/shop/functions/src/lib.rs")
    };
    is_all(&changed.iter().map(module).collect::<Vec<_>>(), &[]);
    // What operators need brings the order of everything with it, where it is not there yet.
    let changed = shop.lay_down(&["operators"]);
    assert!(changed.contains(&"18 0 crates/fanout/Cargo.toml".to_owned()), "{changed:?}");
    shop.cargo(&["xtask", "check"]);
    shop.git(&["reset", "--quiet", "--hard", "HEAD^"]);
    // The first subscription brings the order of everything with it; the second one is like any
    // other view.
    let changed = shop.lay_down(&["subscription", "diary", "--of", "purchaseorder"]);
    let others: Vec<_> = changed.iter().filter(|line| !is_wired(line)).collect();
    let (library, view) = (format!("1 0 crates/apps/{functions}/lib.rs"), format!("1 0 crates/apps/{views}"));
    let fanout = ["12 0 crates/fanout/Cargo.toml", "2 0 crates/fanout/src/lib.rs"];
    assert_eq!(others, [&library, &view, fanout[0], fanout[1], "47 0 docs/runbook.md"]);
    let changed = shop.lay_down(&["operators"]);
    let others: Vec<_> = changed.iter().filter(|line| !is_wired(line)).collect();
    let fanout = ["6 0 crates/fanout/Cargo.toml", "1 0 crates/fanout/src/lib.rs"];
    assert_eq!(others, [fanout[0], fanout[1], "48 0 docs/runbook.md"]);
    let changed = shop.lay_down(&["subscription", "chronicle", "--of", "item"]);
    let others: Vec<_> = changed.iter().filter(|line| !is_wired(line)).collect();
    assert_eq!(others, [&library, &view]);
    // An aggregate in a new application.
    let changed = shop.lay_down(&["aggregate", "parcel", "--in", "post"]);
    for list in
        ["applications/Cargo.toml", "applications/src/lib.rs", "handlers/Cargo.toml", "handlers/src/main.rs"]
    {
        assert!(changed.contains(&format!("1 0 crates/{list}")), "{changed:?}");
    }
    shop.cargo(&["build", "-p", "xtask"]);

    // A command with a wrong or taken name leaves nothing behind.
    for wrong in [
        &["aggregate", "purchase-order", "--in", "shop"][..],
        &["aggregate", "cart"],
        &["aggregate", "cart", "--in", "Shop"],
        &["aggregate", "Order", "--in", "shop"],
        &["projector", "x", "--of", "item", "--in", "shop"],
        &["projector", "x"],
        &["projector", "x", "--of", "nothing"],
        // Queries of a read model that is not there, is written from states, or has a query
        // already.
        &["query", "x", "--of", "item"],
        &["query", "items", "--of", "item", "--log"],
        &["query", "items", "--of", "item"],
        &["subscription", "x", "--of", "nothing"],
        &["subscription", "diary", "--of", "item"],
        &["operators"],
        &["operators", "x"],
        &["projector"],
        &["process-manager", "sequencer", "--of", "item"],
        // Names that are taken in the models, in the template, in Rust or in the code that is laid
        // down.
        &["aggregate", "it-em", "--in", "shop"],
        &["process-manager", "items", "--of", "item"],
        &["projector", "fanout", "--of", "item"],
        &["aggregate", "type", "--in", "shop"],
        &["aggregate", "value", "--in", "shop"],
        &["aggregate", "views", "--in", "other"],
        &["aggregate", "cart", "--in", "local"],
        &["aggregate", "state", "--in", "shop"],
        &["process-manager", "x", "--of", "item", "--log"],
        &["workspace", "crates"],
        &["workspace", "Shop"],
    ] {
        assert!(!shop.xtask_new(wrong).output().unwrap().status.success(), "{wrong:?}");
        assert_eq!(shop.git(&["status", "--porcelain"]), "", "{wrong:?}");
    }

    let passed = shop.passes();
    for test in ["it_is_created_once", "every_event_is_listed", "every_event_is_looked_at"] {
        assert!(passed.contains(test), "{passed}");
    }
    is_linted(&shop);
    fs::remove_dir_all(&shop.root).unwrap();
}

/// The linters of others find nothing, but they find a slip that `cargo xtask check` does not find:
/// a property that only AWS reads.
fn is_linted(shop: &Workspace) {
    // The linters are installed in the folder of this repository, once for all workspaces.
    let tools = shop.target.join("tools");
    fs::create_dir_all(&tools).unwrap();
    fs::create_dir(shop.root.join("target")).unwrap();
    std::os::unix::fs::symlink(tools, shop.root.join("target/tools")).unwrap();
    shop.cargo(&["xtask", "lint"]);

    let path = shop.root.join("template.yaml");
    let template = fs::read_to_string(&path).unwrap();
    let misspelled = template.replacen("DeletionProtectionEnabled:", "DeletionProtektionEnabled:", 1);
    assert_ne!(misspelled, template);
    fs::write(path, misspelled).unwrap();
    let mut lint = Command::new(shop.target.join("debug/xtask"));
    let lint = lint.current_dir(&shop.root).arg("lint").output().unwrap();
    let said = String::from_utf8_lossy(&lint.stdout).into_owned() + &String::from_utf8_lossy(&lint.stderr);
    assert!(!lint.status.success() && said.contains("'DeletionProtektionEnabled' was unexpected"), "{said}");
}

/// `cargo run -p local -- --watch`, as a developer uses it to try a rule out.
#[test]
#[ignore = "it builds the functions three times: cargo test -p ledgerline-tools --test starter an_edit -- --ignored"]
fn an_edit_is_served_without_stopping() {
    let workspace = Workspace::new("try-watch");
    let mut stack = Watched::start(&workspace);
    let create = |stack: &Watched| {
        stack.post("/items", r#"{"id": "5f0a3a6e-6a6d-4e0e-9d0e-0a4f0f4b2c11", "name": "First"}"#)
    };
    assert!(create(&stack).contains("version"));
    assert!(create(&stack).contains("this id is taken"));

    let model = workspace.root.join("crates/apps/shop/model/src/item.rs");
    let before = fs::read_to_string(&model).unwrap();
    fs::write(&model, before.replace("this id is taken", "somebody has this id")).unwrap();
    stack.line("has changed: building");
    assert!(
        create(&stack).contains("somebody has this id"),
        "a request waits for the new code, and finds the data"
    );
    stack.line("functions replaced");

    fs::write(&model, format!("{before} fn")).unwrap();
    stack.line("the old ones go on");
    assert!(create(&stack).contains("somebody has this id"), "what does not compile changes nothing");

    drop(stack);
    fs::remove_dir_all(&workspace.root).unwrap();
}

/// A local stack that watches the workspace.
struct Watched {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
    url: String,
}

impl Watched {
    fn start(workspace: &Workspace) -> Self {
        let arguments =
            ["run", "-p", "local", "--", "--watch", "--port", "0", "--aws-address", "127.0.0.1:0"];
        let mut cargo = Command::new(env!("CARGO"));
        cargo.current_dir(&workspace.root).env("CARGO_TARGET_DIR", &workspace.target).args(arguments);
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
