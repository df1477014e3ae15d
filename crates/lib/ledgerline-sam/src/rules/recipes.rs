//! Tries the YAML of docs/wiring.md on the functions of a new workspace.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use ledgerline::manifest::Manifests;

use super::problems;
use crate::{
    generate::{self, Application, Deploy},
    manifests,
    template::{Source, Template},
};

/// The names of the starter, and those of a new workspace.
const NAMES: [[&str; 2]; 7] = [
    ["stock-cards", "items"],
    ["STOCK_CARDS", "ITEMS"],
    ["stock-journal", "item-history"],
    ["STOCK_JOURNAL", "ITEM_HISTORY"],
    ["stock-item", "item"],
    ["StockItem", "Item"],
    ["stockitem", "item"],
];
/// The functions of one aggregate with one view; a new workspace also has a view of the log.
const FUNCTIONS: [&str; 4] = ["fanout", "item-commands", "items-projector", "items-queries"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

fn page() -> String {
    fs::read_to_string(root().join("docs/wiring.md")).unwrap()
}

fn shop(more: &[&str]) -> Manifests {
    let starter = root().join("crates/lib/ledgerline-tools/starter/manifest.json");
    let text = fs::read_to_string(starter).unwrap();
    let text = NAMES.iter().fold(text, |text, [from, to]| text.replace(from, to));
    let is_kept = |name: &&str| FUNCTIONS.contains(name) || more.contains(name);
    let all = manifests::read(&text).unwrap().into_iter();
    all.filter(|(name, _)| is_kept(&name.as_str())).collect()
}

fn generate(manifests: &Manifests, deploy: &str) -> Source {
    let application =
        Application { name: "shop".to_owned(), parts: BTreeSet::new(), folders: BTreeMap::new() };
    let deploy = Deploy::parse(Path::new("deploy.yaml"), deploy).unwrap();
    let text = generate::template(&application, manifests, &deploy).unwrap();
    Source::parse(&text, Path::new("shop/template.yaml")).unwrap()
}

/// The templates in whose `deploy.yaml` a team has one recipe of the page, by its heading.
fn recipes() -> BTreeMap<String, (Source, Template)> {
    let (manifests, page) = (shop(&["item-history-projector"]), page());
    let (_, recipes) = page.split_once("\n## Recipes\n").unwrap();
    let made = recipes.split("\n### ").skip(1).map(|recipe| {
        let (heading, body) = recipe.split_once('\n').unwrap();
        let yaml = body.split_once("```yaml\n").and_then(|(_, rest)| rest.split_once("```"));
        let source = generate(&manifests, yaml.unwrap().0);
        let template = source.template(&BTreeMap::new(), "http://127.0.0.1").unwrap();
        (heading.to_owned(), (source, template))
    });
    made.collect()
}

#[test]
fn every_recipe_merges_breaks_no_rule_and_runs_on_the_local_stack() {
    let runbook = fs::read_to_string(root().join("docs/runbook.md")).unwrap();
    let recipes = recipes();
    assert_eq!(recipes.len(), 5);
    for (heading, (source, template)) in &recipes {
        assert_eq!(problems(source, &runbook), [""; 0], "{heading}");
        let own = usize::from(heading == "A table and a function of your own");
        assert_eq!(template.functions.len(), 5 + own, "{heading}");
    }
    for (heading, expected) in [
        ("A VPC for all functions", "Globals.Function.VpcConfig"),
        ("A target in another account", "TheirItems: AWS::Events::Rule is not emulated"),
    ] {
        let ignored = &recipes[heading].1.ignored_properties;
        assert!(ignored.iter().any(|it| it == expected), "{heading}: {ignored:?}");
    }
}

#[test]
fn the_page_has_the_numbers_of_resources() {
    for (more, sentence) in [
        (&[][..], "One aggregate with one view has {} functions and {} resources."),
        (&["item-history-projector"], "a new workspace has {} and {}."),
    ] {
        let json = generate(&shop(more), "").json();
        let resources = json["Resources"].as_object().unwrap();
        let functions =
            resources.values().filter(|it| it["Type"] == "AWS::Serverless::Function").count();
        let sentence = sentence.replacen("{}", &functions.to_string(), 1);
        let sentence = sentence.replacen("{}", &resources.len().to_string(), 1);
        assert!(page().replace('\n', " ").contains(&sentence), "{sentence}");
    }
}
