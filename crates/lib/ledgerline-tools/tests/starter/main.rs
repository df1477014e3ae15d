//! Tests of the starter, from which every new part is copied, and of new workspaces. They build, a
//! workspace with every kind of part passes its tests, and the lessons work.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod lessons;
mod workspace;

use std::{
    fs,
    io::{BufRead, BufReader, Lines},
    path::Path,
    process::{Child, ChildStdout, Stdio},
};

use ledgerline_sam::manifests;

use self::workspace::{Workspace, run};

/// Asserts that only these lists, the list of functions, the proofs of the application, and the
/// template have changed, and that a reviewer reads at most 250 lines of the template.
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
    let [template] = wired.as_slice() else { panic!("{wired:?}") };
    let lines = template.split(' ').filter_map(|number| number.parse::<usize>().ok());
    assert!(lines.sum::<usize>() <= 250, "{template}");
}

/// Whether `cargo xtask wire` writes this changed file.
fn is_wired(line: &str) -> bool {
    line.ends_with(" template.yaml")
}

/// A new workspace is laid down from `manifest.json`, without a build. After a change of the
/// functions, run this test with `UPDATE_REFERENCE=1`, which writes that file, and
/// `cargo xtask schemas --types contract.json` in the copy.
#[test]
#[ignore = "it builds a workspace: cargo test -p ledgerline-tools --test starter -- --ignored"]
fn the_manifests_of_the_starter_are_those_that_its_functions_print() {
    let starter = Workspace::starter();
    let template = starter.root.join("template.yaml");
    fs::write(&template, "").unwrap();
    starter.cargo(&["xtask", "wire"]);
    let printed = manifests::read_file(&template).unwrap();
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/starter/manifest.json"));
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        fs::write(path, serde_json::to_string_pretty(&printed).unwrap() + "\n").unwrap();
    }
    let known = manifests::read(&fs::read_to_string(path).unwrap()).unwrap();
    assert_eq!(manifests::changed_functions(&known, &printed), [""; 0]);
}

/// Two workspaces have packages with the same names and relative paths, in one build folder. In each
/// of them, a test prints the name of its workspace.
#[test]
#[ignore = "it builds a workspace: cargo test -p ledgerline-tools --test starter -- --ignored"]
fn workspaces_that_share_a_build_folder_share_no_code() {
    let workspaces = ["try-one", "try-two"].map(|name| {
        let workspace = Workspace::new(name);
        let model = workspace.root.join("crates/apps/shop/model/src/lib.rs");
        let text = fs::read_to_string(&model).unwrap();
        let test = format!("#[test]\nfn name_is_printed() {{ println!(\"code of {name}\") }}\n");
        fs::write(model, format!("{text}\n{test}")).unwrap();
        (workspace, format!("code of {name}"))
    });
    // The first one is built once more after the second one.
    for place in [0, 1, 0] {
        let (workspace, expected) = &workspaces[place];
        let test = ["test", "-p", "shop", "name_is_printed", "--", "--nocapture"];
        let printed = workspace.cargo(&test);
        assert!(printed.contains(expected), "{expected}: {printed}");
    }
}

#[test]
#[ignore = "it builds a workspace: cargo test -p ledgerline-tools --test starter -- --ignored"]
fn a_new_workspace_builds_passes_and_grows() {
    let shop = Workspace::new("try-shop");
    let deploy = fs::read_to_string(shop.root.join("deploy.yaml")).unwrap();
    assert!(deploy.lines().all(|line| line.starts_with('#')), "{deploy}");
    // Cargo writes the packages of the workspace into the lock file.
    shop.cargo(&["xtask", "check"]);
    // The contract was made from the types of the starter, without a build.
    shop.cargo(&["xtask", "schemas", "--check"]);
    shop.commit();
    let recipes = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/starter/recipes"));
    assert_eq!(shop.apply(recipes), 8);
    shop.cargo(&["xtask", "wire"]);
    shop.cargo(&["xtask", "schemas"]);
    // The schemas of earlier numbers and names stay.
    for schema in ["ItemCreated.1", "ItemCreated.2", "ItemRenamed.1", "ItemNamed.2"] {
        assert!(shop.root.join(format!("docs/schemas/events/item/{schema}.json")).exists());
    }
    shop.commit();

    let model = "shop/model/src";
    let functions = "shop/functions/src";
    let views = format!("{model}/views.rs");
    let rows = format!("{model}/lib.rs");
    let queries = format!("{functions}/queries.rs");
    let aggregate = ["aggregate", "purchase-order", "--in", "shop", "--category", "purchaseorder"];
    let changed = shop.lay_down(&aggregate);
    assert!(changed.contains(&format!("2 0 crates/apps/{model}/lib.rs")), "{changed:?}");
    // xtask contains the aggregates, so build it with the new one.
    shop.cargo(&["build", "-p", "xtask"]);
    is_all(
        &shop.lay_down(&["projector", "open-orders", "--of", "purchaseorder"]),
        &[&rows, &views],
    );
    // A query that also lists the rows needs an index, so the view changes.
    let listed = ["new", "query", "open-orders", "--of", "purchaseorder", "--by", "createdBy"];
    run(&mut shop.xtask(&listed));
    shop.commit();
    // A second view of the same aggregate, named like the application.
    is_all(&shop.lay_down(&["projector", "shop", "--of", "purchaseorder"]), &[&rows, &views]);
    let on_bus = ["projector", "order-signs", "--of", "purchaseorder", "--via", "bus"];
    is_all(&shop.lay_down(&on_bus), &[&rows, &views]);
    let log = |kind| [kind, "order-log", "--of", "purchaseorder", "--log"];
    is_all(&shop.lay_down(&log("projector")), &[&rows, &views]);
    is_all(&shop.lay_down(&log("query")), &[&queries]);
    is_all(
        &shop.lay_down(&["projector", "order-sums", "--of", "purchaseorder", "--sums"]),
        &[&rows, &views],
    );
    // The first view in PostgreSQL brings a dependency with it, and the parameters of a database.
    let postgres_view = ["projector", "order-texts", "--of", "purchaseorder", "--log"];
    let changed = shop.lay_down(&[&postgres_view[..], &["--store", "postgres"]].concat());
    for list in ["Cargo.toml", "crates/apps/shop/functions/Cargo.toml"] {
        assert!(changed.contains(&format!("1 0 {list}")), "{changed:?}");
    }
    let states = ["projector", "order-cards", "--of", "purchaseorder", "--store", "postgres"];
    is_all(&shop.lay_down(&states), &[&rows, &views]);
    // The first process manager brings a module with it, so the same file has one more line, in its
    // list of modules.
    let first = ["process-manager", "ship-orders", "--of", "purchaseorder"];
    let changed: Vec<_> = shop.lay_down(&first);
    let module = |line: &String| {
        line.replace(
            "2 0 crates/apps/shop/functions/src/lib.rs",
            "1 0 crates/apps/shop/functions/src/lib.rs",
        )
    };
    is_all(&changed.iter().map(module).collect::<Vec<_>>(), &[]);
    // A process manager that sends commands to another aggregate.
    shop.lay_down(&["aggregate", "invoice", "--in", "shop"]);
    shop.cargo(&["build", "-p", "xtask"]);
    let managers = format!("{functions}/process_managers.rs");
    let commands =
        ["process-manager", "bill-orders", "--of", "purchaseorder", "--commands", "invoice"];
    is_all(&shop.lay_down(&commands), &[&managers]);
    // The first subscription also adds `$all`. The second subscription is like any other view.
    let changed = shop.lay_down(&["subscription", "diary", "--of", "purchaseorder"]);
    let others: Vec<_> = changed.iter().filter(|line| !is_wired(line)).collect();
    let library = format!("1 0 crates/apps/{functions}/lib.rs");
    let view = format!("1 0 crates/apps/{views}");
    let fanout = ["12 0 crates/fanout/Cargo.toml", "2 0 crates/fanout/src/lib.rs"];
    let row = format!("1 0 crates/apps/{rows}");
    assert_eq!(others, [&library, &row, &view, fanout[0], fanout[1]]);
    let changed = shop.lay_down(&["operators"]);
    let others: Vec<_> = changed.iter().filter(|line| !is_wired(line)).collect();
    let fanout = ["6 0 crates/fanout/Cargo.toml", "1 0 crates/fanout/src/lib.rs"];
    assert_eq!(others, fanout);
    let changed = shop.lay_down(&["subscription", "chronicle", "--of", "item"]);
    let others: Vec<_> = changed.iter().filter(|line| !is_wired(line)).collect();
    assert_eq!(others, [&library, &row, &view]);
    // An aggregate in a new application.
    let changed = shop.lay_down(&["aggregate", "parcel", "--in", "post"]);
    for list in [
        "applications/Cargo.toml",
        "applications/src/lib.rs",
        "local/Cargo.toml",
        "local/src/handlers.rs",
    ] {
        assert!(changed.contains(&format!("1 0 crates/{list}")), "{changed:?}");
    }
    shop.cargo(&["build", "-p", "xtask"]);

    // `cargo xtask wire --samples` writes missing samples, and changes no other sample.
    let samples =
        |function: &str| ["events", "tests/answers"].map(|of| shop.root.join(of).join(function));
    for function in [
        "open-orders-projector",
        "order-signs-projector",
        "order-log-projector",
        "diary-subscription",
        "parcel-commands",
    ] {
        samples(function).iter().for_each(|folder| fs::remove_dir_all(folder).unwrap());
    }
    shop.cargo(&["xtask", "wire", "--samples"]);
    let changed = shop.git(&["status", "--porcelain", "--untracked-files=all"]);
    let of_routes =
        changed.lines().filter(|line| line.starts_with("?? events/parcel-commands/post-parcels"));
    assert_eq!(of_routes.count(), 2, "{changed}");
    assert!(changed.lines().all(|line| line.contains("/parcel-commands/")), "{changed}");
    shop.commit();

    // A command with a wrong or taken name leaves no file behind.
    for wrong in [
        &["aggregate", "purchase-order", "--in", "shop", "--category", "purchaseorder"][..],
        &["aggregate", "quick-cart", "--in", "shop"],
        &["projector", "x", "--of", "item", "--category", "x"],
        &["aggregate", "cart"],
        &["aggregate", "cart", "--in", "Shop"],
        &["aggregate", "Order", "--in", "shop"],
        &["projector", "x", "--of", "item", "--in", "shop"],
        &["projector", "x"],
        &["projector", "x", "--of", "nothing"],
        // Queries of a read model that does not exist, that is written from states, or that has a
        // query already.
        &["query", "x", "--of", "item"],
        &["query", "items", "--of", "item", "--log"],
        &["query", "items", "--of", "item"],
        &["subscription", "x", "--of", "nothing"],
        &["subscription", "diary", "--of", "item"],
        &["operators"],
        &["operators", "x"],
        &["projector"],
        &["process-manager", "sequencer", "--of", "item"],
        // Names that are taken in the models, in the template, in Rust or in the code of new parts.
        &["aggregate", "it-em", "--in", "shop", "--category", "item"],
        &["process-manager", "items", "--of", "item"],
        &["projector", "fanout", "--of", "item"],
        &["projector", "cursor", "--of", "item"],
        &["aggregate", "type", "--in", "shop"],
        &["aggregate", "value", "--in", "shop"],
        &["aggregate", "views", "--in", "other"],
        &["aggregate", "cart", "--in", "local"],
        &["aggregate", "state", "--in", "shop"],
        &["process-manager", "x", "--of", "item", "--log"],
        // Options of other kinds, a field that no row has, and commands that would never end.
        &["projector", "x", "--of", "item", "--by", "name"],
        &["projector", "x", "--of", "item", "--log", "--via", "bus"],
        &["query", "open-orders", "--of", "purchaseorder", "--via", "bus"],
        &["query", "open-orders", "--of", "purchaseorder", "--sums"],
        &["query", "shop", "--of", "purchaseorder", "--by", "colour"],
        &["query", "order-texts", "--of", "purchaseorder", "--log"],
        &["projector", "x", "--of", "item", "--via", "bus", "--store", "postgres"],
        &["process-manager", "x", "--of", "item", "--commands", "item"],
        &["process-manager", "x", "--of", "item", "--commands", "parcel"],
        &["workspace", "crates"],
        &["workspace", "Shop"],
    ] {
        let arguments = [&["new"], wrong].concat();
        assert!(!shop.xtask(&arguments).output().unwrap().status.success(), "{wrong:?}");
        assert_eq!(shop.git(&["status", "--porcelain"]), "", "{wrong:?}");
    }

    shop.cargo(&["xtask", "schemas"]);
    let passed = shop.passes();
    for test in [
        "every_sample_event",
        "whatever_the_delivery",
        "it_is_created_once",
        "every_event_is_listed",
        "every_event_causes_an_effect",
    ] {
        assert!(passed.contains(test), "{passed}");
    }
    is_linted(&shop);
    fs::remove_dir_all(&shop.root).unwrap();
}

/// Asserts that the third-party linters find no problem in the workspace. The linters do find a
/// slip that `cargo xtask check` misses: a property that only AWS reads.
fn is_linted(shop: &Workspace) {
    // The linters are installed once for all workspaces, in the target folder of this repository.
    let tools = shop.built.join("tools");
    fs::create_dir_all(&tools).unwrap();
    std::os::unix::fs::symlink(tools, shop.root.join("target/tools")).unwrap();
    shop.cargo(&["xtask", "lint"]);

    let path = shop.root.join("template.yaml");
    let template = fs::read_to_string(&path).unwrap();
    let misspelled =
        template.replacen("DeletionProtectionEnabled:", "DeletionProtektionEnabled:", 1);
    assert_ne!(misspelled, template);
    fs::write(path, misspelled).unwrap();
    let lint = shop.xtask(&["lint"]).output().unwrap();
    let said =
        String::from_utf8_lossy(&lint.stdout).into_owned() + &String::from_utf8_lossy(&lint.stderr);
    assert!(
        !lint.status.success() && said.contains("'DeletionProtektionEnabled' was unexpected"),
        "{said}"
    );
}

/// Runs `cargo run -p local -- --watch`, as a developer does to try a change of a rule.
#[test]
#[ignore = "it builds the functions three times: cargo test -p ledgerline-tools --test starter an_edit -- --ignored"]
fn an_edit_is_served_without_stopping() {
    let workspace = Workspace::new("try-watch");
    let mut stack = Watched::start(&workspace, &["--watch"]);
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
    stack.line("the old functions stay");
    assert!(
        create(&stack).contains("somebody has this id"),
        "what does not compile changes nothing"
    );

    drop(stack);
    fs::remove_dir_all(&workspace.root).unwrap();
}

/// A local stack that watches the files of the workspace.
struct Watched {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
    url: String,
    aws: String,
}

impl Watched {
    fn start(workspace: &Workspace, arguments: &[&str]) -> Self {
        let ports = ["run", "-p", "local", "--", "--port", "0", "--aws-address", "127.0.0.1:0"];
        let mut cargo = workspace.command(env!("CARGO"));
        cargo.args(ports).args(arguments);
        let mut process = cargo.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut this = Self { process, lines, url: String::new(), aws: String::new() };
        let aws = this.line("(for AWS_ENDPOINT_URL)");
        this.aws = aws.split_whitespace().nth(1).unwrap().to_owned();
        let ready = this.line("Ready at ");
        this.url = ready.split_once("Ready at ").unwrap().1.split_once(". ").unwrap().0.to_owned();
        this
    }

    /// Waits for a line that contains `part`, and returns the line.
    fn line(&mut self, part: &str) -> String {
        self.lines.by_ref().map_while(Result::ok).find(|line| line.contains(part)).unwrap()
    }

    fn post(&self, path: &str, body: &str) -> String {
        let client =
            reqwest::Client::new().post(format!("{}{path}", self.url)).body(body.to_owned());
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
