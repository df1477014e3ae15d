//! A test of docs/upgrading.md: its steps upgrade a workspace of an earlier version to this
//! version.

use std::{fs, process::Command};

use serde_json::{Value, json};

use super::workspace::{Workspace, run};

/// A file of a workspace that the steps edit.
struct Edited<'w> {
    workspace: &'w Workspace,
    path: &'static str,
}

impl Edited<'_> {
    fn text(&self) -> String {
        fs::read_to_string(self.workspace.root.join(self.path)).unwrap()
    }

    fn write(&self, text: &str) {
        fs::write(self.workspace.root.join(self.path), text).unwrap();
    }

    fn replace(&self, from: &str, to: &str) {
        let text = self.text();
        assert!(text.contains(from), "{} has no {from}", self.path);
        self.write(&text.replacen(from, to, 1));
    }
}

/// Puts the marks of a generated block around a line and the lines below it that are indented more.
/// The first line is the first one after the line `after` that begins with `first`.
fn with_block(template: &Edited<'_>, name: &str, after: &str, first: &str) {
    let text = template.text();
    let lines: Vec<_> = text.lines().collect();
    let after = lines.iter().position(|line| line.trim() == after).expect(after);
    let begins = |line: &&str| line.trim_start().starts_with(first);
    let start = after + lines[after..].iter().position(begins).expect(first);
    let spaces = |line: &str| line.len() - line.trim_start().len();
    let indent = " ".repeat(spaces(lines[start]));
    // The lists of that version may have empty lines.
    let is_inside = |line: &&&str| spaces(line) > indent.len() || line.is_empty();
    let end = start + 1 + lines[start + 1..].iter().take_while(is_inside).count();
    let (begin, close) =
        (format!("{indent}# <generated {name}>"), format!("{indent}# </generated>"));
    let parts =
        [&lines[..start], &[begin.as_str()], &lines[start..end], &[close.as_str()], &lines[end..]];
    template.write(&(parts.concat().join("\n") + "\n"));
}

/// Returns the steps in a table of answers. Each line of the table has the file, a few words, and
/// the answer.
fn answers(table: &str) -> Vec<(String, Value)> {
    let lines = table.lines().skip(2).enumerate();
    let row = |(place, line): (usize, &str)| {
        let cells: Vec<_> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [file, about, answer] = cells.as_slice() else { panic!("{line}") };
        let answer: Value = serde_json::from_str(answer.trim_matches('`')).unwrap();
        ((*file).to_owned(), json!([{ "step": place + 1, "about": about, "answer": answer }]))
    };
    lines.map(row).collect()
}

/// Carries out the steps of "One way of watching" in docs/upgrading.md.
fn watch_as_a_new_workspace_does(template: &Edited<'_>, new: &Workspace) {
    let cut = |text: &str, from: &str, to: &str| {
        let start = text.find(from).expect(from);
        let end = start + text[start..].find(to).expect(to);
        (text[start..end].to_owned(), [&text[..start], &text[end..]].concat())
    };
    let mut text = template.text();
    for (from, to) in [
        ("  # Every function: <name>Function.\n", "  # Functions behind the HTTP API"),
        ("  AnyErrors:", "  # SNS tries a mail"),
        ("  LogsOfMetrics:", "\nConditions:"),
        ("  WatchesAll:", "  HasFunctionUrls:"),
        ("        WATCHING:", "        PROBLEM_TYPES:"),
    ] {
        text = cut(&text, from, to).1;
    }
    text = text
        .lines()
        .filter(|line| line.trim() != "Condition: WatchesAll")
        .fold(String::new(), |text, line| text + line + "\n");
    let of_deployments =
        "!If [WatchesAll, [!Ref FanoutIteratorAge, !Ref FanoutErrors], [!Ref FanoutIteratorAge]]";
    text = text.replace(of_deployments, "[!Ref FanoutIteratorAge, !Ref FanoutErrors]");
    let newest = fs::read_to_string(new.root.join("template.yaml")).unwrap();
    let alarms = cut(&newest, "  FailedInvocations:", "  # SNS tries a mail").0;
    let of_fanout = cut(&newest, "  FanoutErrors:", "  FanoutIteratorAge:").0;
    text = text.replacen(
        "  # SNS tries a mail",
        &format!("{alarms}{of_fanout}  # SNS tries a mail"),
        1,
    );
    template.write(&text);
}

/// Carries out the steps of "Types of routes" in docs/upgrading.md.
fn declare_types(shop: &Workspace, page: &str) {
    let section =
        page.split_once("\n## Types of routes\n").unwrap().1.split_once("\n## ").unwrap().0;
    let is_step = |line: &&str| line.starts_with(char::is_numeric) && line.contains(". ");
    assert_eq!(section.lines().filter(is_step).count(), 8, "the steps of this function");
    let edited = |path| Edited { workspace: shop, path };
    // The dependency, and the line for each package, are texts of the first step.
    let texts: Vec<_> = section.split('`').skip(1).step_by(2).collect();
    let dependency = texts.iter().find(|text| text.starts_with("schemars = ")).unwrap();
    let package = texts.iter().find(|text| text.starts_with("schemars.workspace")).unwrap();
    edited("Cargo.toml").replace("\nserde = ", &format!("\n{dependency}\nserde = "));
    for path in ["crates/apps/shop/model/Cargo.toml", "crates/apps/shop/functions/Cargo.toml"] {
        edited(path).replace("\nserde.workspace", &format!("\n{package}\nserde.workspace"));
    }
    for path in [
        "crates/apps/shop/model/src/item.rs",
        "crates/apps/shop/model/src/views/items.rs",
        "crates/apps/shop/model/src/views/item_history.rs",
        "crates/apps/shop/functions/src/commands/item.rs",
    ] {
        let file = edited(path);
        let text =
            file.text().replace("Serialize, Deserialize)]", "JsonSchema, Serialize, Deserialize)]");
        let text = text.replace("#[derive(Deserialize)]", "#[derive(JsonSchema, Deserialize)]");
        file.write(&text.replacen("use serde::", "use schemars::JsonSchema;\nuse serde::", 1));
    }
    // A `Value` is any value in the contract, so the answer of the commands may stay one.
    let query = edited("crates/apps/shop/functions/src/queries/items.rs");
    query.replace("row::<Item, Row>(", "row::<Item, Row, Row>(");
    query.replace("|row| json!(row)", "|row| row");
    query.replace("use serde_json::json;\n", "");
    edited("crates/apps/shop/model/src/lib.rs").replace(
        "        visitor.visit::<item::Item>();\n",
        "        visitor.row::<views::item_history::Row>(\"item_history\");
        visitor.row::<views::items::Row>(\"items\");
        visitor.visit::<item::Item>();\n",
    );
    for path in ["crates/handlers/Cargo.toml", "crates/local/Cargo.toml"] {
        let with = "ledgerline-lambda = { workspace = true, features = [\"schema\"] }";
        edited(path).replace("ledgerline-lambda.workspace = true", with);
    }
    edited(".ci/run")
        .replace("cargo xtask check\n", "cargo xtask check\ncargo xtask schemas --check\n");
}

#[test]
#[ignore = "it builds a workspace: cargo test -p ledgerline-tools --test starter upgrade -- --ignored"]
fn a_workspace_without_manifests_upgrades_step_by_step() {
    let shop = Workspace::copied("try-upgrade", "tests/starter/before_manifests", "rails/");
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/upgrading.md");
    let page = fs::read_to_string(page).unwrap();
    let steps = page.split_once("\n## Manifests\n").unwrap().1.split_once("\n## ").unwrap().0;
    let edited = |path| Edited { workspace: &shop, path };
    let manifest = edited("Cargo.toml");
    let template = edited("template.yaml");
    // The workspace names the libraries by their folder in that version.
    manifest.write(&manifest.text().replace("crates/lib/", "crates/rails/"));
    let moved = page.split_once("\n## Libraries in `crates/lib`\n").unwrap().1;
    let command = moved.split_once("```sh\n").unwrap().1.split_once("\n```").unwrap().0;
    run(Command::new("sh").args(["-c", command]).current_dir(&shop.root));
    assert!(manifest.text().contains("crates/lib/ledgerline\""), "{}", manifest.text());
    let commands = edited("crates/apps/shop/functions/src/commands/item.rs");
    for (before, after) in [
        ("{Route, changes, creates}", "{Route, create, update}"),
        ("creates(", "create("),
        ("changes(", "update("),
    ] {
        commands.replace(before, after);
    }
    declare_types(&shop, &page);
    let new = Workspace::new("try-new");
    watch_as_a_new_workspace_does(&template, &new);
    fs::copy(new.root.join("docs/runbook.md"), shop.root.join("docs/runbook.md")).unwrap();
    let mut done = Vec::new();
    let mut step = |number: usize, text: &str| {
        let line = steps.lines().find(|line| line.starts_with(&format!("{number}. ")));
        assert!(line.is_some_and(|line| line.contains(text)), "step {number} does not say {text}");
        done.push(number);
    };

    step(1, "Add `ledgerline-sam`");
    let text = manifest.text();
    let local = text.lines().find(|line| line.starts_with("ledgerline-local = ")).unwrap();
    manifest.replace(
        local,
        &format!("{local}\n{}", local.replace("ledgerline-local", "ledgerline-sam")),
    );
    edited("crates/handlers/Cargo.toml")
        .replace("ledgerline-local.workspace", "ledgerline-sam.workspace");
    // A new workspace calls none of the items that these steps rename.
    step(2, "`ledgerline_lambda::needs`");
    step(3, "process manager");
    step(4, "consumer of your own");
    step(5, "`ledgerline_local::services::sdk_config`");
    step(6, "Delete `docs/permissions`");
    fs::remove_dir_all(shop.root.join("docs/permissions")).unwrap();
    edited("crates/xtask/Cargo.toml").replace("ledgerline-lambda.workspace = true\n", "");
    step(7, "Run `cargo xtask wire`");
    shop.cargo(&["xtask", "wire"]);
    edited(".ci/run")
        .replace("cargo xtask check\n", "cargo xtask check\ncargo xtask wire --check\n");
    step(8, "Let `wire` write");
    with_block(&template, "STATE_VIEWS", "FanoutFunction:", "STATE_VIEWS: !Sub |");
    with_block(&template, "LOG_QUEUES", "FanoutFunction:", "LOG_QUEUES: !Sub |");
    for looped in ["Urls", "Commands", "StateViews", "LogViews", "Queues"] {
        with_block(&template, looped, &format!("Fn::ForEach::{looped}:"), "- - ");
    }
    step(9, "Add `Metadata");
    let metadata = "Metadata: { cfn-lint: { config: { ignore_checks: [E3724] } } }";
    let block = "  Ledgerline:\n    # <generated Manifests>\n    # </generated>";
    template.replace(
        metadata,
        &format!("Metadata:\n  cfn-lint: {{ config: {{ ignore_checks: [E3724] }} }}\n{block}\n"),
    );
    shop.cargo(&["xtask", "wire"]);
    assert!(template.text().contains("      items-projector: '{"), "{}", template.text());
    step(10, "Keep the program `ledger`");
    step(11, "Move the expected answers");
    for folder in fs::read_dir(shop.root.join("events")).unwrap() {
        let events = folder.unwrap().path();
        let to = shop.root.join("tests/answers").join(events.file_name().unwrap());
        fs::create_dir_all(&to).unwrap();
        for (file, steps) in answers(&fs::read_to_string(events.join("answers.md")).unwrap()) {
            fs::write(to.join(file), serde_json::to_string_pretty(&steps).unwrap()).unwrap();
        }
        fs::remove_file(events.join("answers.md")).unwrap();
    }
    step(12, "Delete each `answers.md`");
    step(13, "`samples::of`");
    step(14, "Delete `build.rs`");
    for package in ["applications", "handlers"] {
        fs::remove_file(shop.root.join(format!("crates/{package}/build.rs"))).unwrap();
    }
    for path in ["crates/applications/Cargo.toml", "crates/handlers/Cargo.toml"] {
        edited(path)
            .replace("[build-dependencies]\nanyhow.workspace = true\ntoml.workspace = true\n", "");
    }
    let text = manifest.text();
    let toml = text.lines().find(|line| line.starts_with("toml = ")).unwrap();
    manifest.replace(&format!("{toml}\n"), "");
    for path in ["crates/applications/src/lib.rs", "crates/handlers/src/main.rs"] {
        fs::copy(new.root.join(path), shop.root.join(path)).unwrap();
    }
    assert_eq!(
        done.len(),
        steps
            .lines()
            .filter(|line| line.contains(". ") && line.starts_with(char::is_numeric))
            .count()
    );

    // The last step of "Types of routes" needs the manifests.
    shop.cargo(&["xtask", "schemas"]);
    assert!(shop.root.join("docs/schemas/rows/items.json").exists());

    // A new part of this version fits into the template of the earlier version.
    shop.cargo(&["xtask", "new", "subscription", "diary", "--of", "item"]);
    shop.cargo(&["xtask", "check"]);
    shop.cargo(&["xtask", "wire", "--check"]);
    shop.cargo(&["xtask", "schemas"]);
    let passed = shop.cargo(&[
        "test",
        "-p",
        "handlers",
        "-p",
        "local",
        "-p",
        "shop-functions",
        "--test",
        "*",
    ]);
    for test in
        ["an_item_is_created_renamed_and_shown", "every_sample_event", "whatever_the_delivery"]
    {
        assert!(passed.contains(test), "{passed}");
    }
}
