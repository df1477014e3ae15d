//! `cargo xtask new`: lays down an aggregate, a projector, a query or a process manager that
//! compiles, passes its tests and deploys, for somebody to go on from: new files, one line in each
//! list of modules, and the entries in `template.yaml`. Or a whole workspace with an aggregate, a
//! projector of each kind and a query.
//!
//! The texts are in the folder `new` of this package; `{{word}}` stands for a word of the name.

macro_rules! text {
    ($name:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/new/", $name, ".txt"))
    };
}

mod change;
mod template;
pub(crate) mod workspace;

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use ledgerline::{Aggregate, Aggregates, EventTypes, StreamId, Visitor, categories};
use ledgerline_sam::{grants::scope_prefix, samples::Step, template::Source};
use serde::Serialize;
use serde_json::{Value, json};

use self::change::{Change, Replaced, restore};
pub(crate) use self::template::TEMPLATE;
use crate::{tools, wire};

/// The package with the list of applications.
const APPLICATIONS: &str = "crates/applications";
/// The line before the applications.
const VISITED: &str = "    fn visit(visitor: &mut impl Visitor) {";
/// The development binary, with the list of packages that have functions.
const HANDLERS: &str = "crates/handlers";
/// The line before these packages.
const HANDLED: &str = "    // One line for each package with functions.";
/// The library of the functions that are of no application.
const FANOUT: &str = "crates/fanout/src/lib.rs";
/// The line before the functions of a package.
const DECLARED: &str = "ledgerline_lambda::handlers! {";

/// The kind of thing that is laid down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// A module of a model, and the function that takes its commands.
    Aggregate,
    /// A read model, and the function that writes it.
    Projector,
    /// A function that acts on events.
    ProcessManager,
    /// A function that follows the commits of all streams in one order, and writes a read model.
    /// With the first one, the order is laid down too: the function that makes it, and the one that
    /// shows it.
    Subscription,
    /// A function that answers from a read model.
    Query,
    /// What operators need: policies for their roles, the table that keeps what they did, and a
    /// function that finds once a day what is missing behind the log. There is one of it, without a
    /// name. If the order of everything is not there yet, it is laid down too.
    Operators,
    /// A workspace of its own, with a small application. Its name is the folder, which must be new
    /// or empty.
    Workspace,
}

/// Words that cannot be the name of a module.
const KEYWORDS: [&str; 51] = [
    "abstract", "as", "async", "await", "become", "box", "break", "const", "continue", "crate", "do", "dyn",
    "else", "enum", "extern", "false", "final", "fn", "for", "gen", "if", "impl", "in", "let", "loop",
    "macro", "match", "mod", "move", "mut", "override", "priv", "pub", "ref", "return", "self", "static",
    "struct", "super", "trait", "true", "try", "type", "typeof", "unsafe", "unsized", "use", "virtual",
    "where", "while", "yield",
];

/// Types that the modules that are laid down define or name. A type of the same name would clash
/// with them.
const TYPES: [&str; 42] = [
    "Aggregate",
    "Application",
    "Changes",
    "ChangesError",
    "Command",
    "Commit",
    "Context",
    "Create",
    "Created",
    "Deserialize",
    "Event",
    "EventType",
    "EventTypes",
    "History",
    "Id",
    "Last",
    "Lib",
    "LogTable",
    "LogView",
    "Main",
    "Option",
    "OrderedView",
    "Query",
    "Reaction",
    "Refusal",
    "Rename",
    "Result",
    "Rng",
    "Route",
    "Row",
    "Serialize",
    "State",
    "StateTable",
    "StateView",
    "StreamId",
    "String",
    "Text",
    "Timestamp",
    "Value",
    "Vec",
    "Views",
    "VisibleTo",
];

/// Packages of a workspace, and those that the packages of an application name. An application must
/// not have such a name, nor must a function have the name of a program of the workspace.
const PACKAGES: [&str; 25] = [
    "alloc",
    "anyhow",
    "applications",
    "core",
    "fanout",
    "fastrand",
    "handlers",
    "http",
    "jiff",
    "ledger",
    "ledgerline",
    "local",
    "proofs",
    "reconciler",
    "reqwest",
    "sequencer",
    "serde",
    "serde-json",
    "std",
    "test",
    "thiserror",
    "tokio",
    "tracing",
    "uuid",
    "xtask",
];

/// The id in the sample events.
const ID: &str = "163082d2-b005-45d7-9eb6-aa1f83efd55d";
/// The time of what is in a sample.
const AT: &str = "2026-11-21T09:30:03.123456Z";
/// The sort key of the first event of a stream, in a row that is written from the log.
const FIRST_ENTRY: &str = "00000000000000000001#0000";

/// Lays something down in the workspace that is the current folder.
pub(crate) fn run<L: Aggregates>(
    kind: Kind,
    name: Option<&str>,
    application: Option<&str>,
    of: Option<&str>,
    log: bool,
) -> Result<()> {
    if log && !matches!(kind, Kind::Projector | Kind::Query) {
        bail!("--log is for projectors and queries");
    }
    if kind == Kind::Workspace {
        if application.is_some() || of.is_some() {
            bail!("a workspace is laid down by its folder alone");
        }
        return workspace::lay_down(Path::new(name.context("say its folder")?));
    }
    let words = if kind == Kind::Operators {
        if name.or(application).or(of).is_some() {
            bail!("what operators need has no name, and is for all applications");
        }
        Words::default()
    } else {
        Words::of::<L>(kind, name.context("say its name")?, application, of)?
    };
    let replaced = lay_down(kind, &words, log)?;
    // The loops make resources from the function's manifest, and one of them may have the name
    // already. The workspace must build before that is known.
    if let Err(error) = finish().and_then(|()| wire::run(Path::new(TEMPLATE), false)) {
        restore(replaced)?;
        return Err(error.context("nothing is laid down; choose another name if the name is taken"));
    }
    next_steps(kind, &words);
    Ok(())
}

/// Lays down the thing that these words name.
fn lay_down(kind: Kind, words: &Words, log: bool) -> Result<Replaced> {
    let mut change = Change::default();
    match kind {
        Kind::Aggregate => aggregate(words, &mut change)?,
        Kind::Projector if log => log_projector(words, &mut change)?,
        Kind::Projector => state_projector(words, &mut change)?,
        Kind::ProcessManager => process_manager(words, &mut change)?,
        Kind::Subscription => subscription(words, &mut change)?,
        Kind::Query => query(words, log, &mut change)?,
        Kind::Operators => operators(&mut change)?,
        Kind::Workspace => bail!("a workspace is no part of another"),
    }
    change.make()
}

/// Formats the code.
fn finish() -> Result<()> {
    // Where a line breaks depends on the length of the name in it, so the texts cannot be formatted
    // before.
    tools::run(std::process::Command::new("cargo").arg("fmt"))
}

/// Prints the next steps.
fn next_steps(kind: Kind, words: &Words) {
    let text = match kind {
        Kind::Aggregate => text!("next-aggregate"),
        Kind::Projector => text!("next-projector"),
        Kind::ProcessManager => text!("next-process-manager"),
        Kind::Subscription => text!("next-subscription"),
        Kind::Query => text!("next-query"),
        Kind::Operators => text!("next-operators"),
        Kind::Workspace => text!("workspace/next"),
    };
    let template = Source::read(Path::new(TEMPLATE)).map(|source| source.json()).unwrap_or_default();
    println!("{}", OwnNames::of(&template).fill(&words.fill(text)).trim_end());
}

/// The names that a workspace has chosen for what clients and operators see.
struct OwnNames {
    /// The beginning of each scope.
    scope: String,
    /// The namespace of the metrics.
    namespace: String,
}

impl OwnNames {
    fn of(template: &Value) -> Self {
        let namespace = &template["Globals"]["Function"]["Environment"]["Variables"]["METRICS_NAMESPACE"];
        let namespace = namespace["Fn::Sub"].as_str().or(namespace.as_str());
        Self {
            scope: scope_prefix(template).unwrap_or("ledgerline").to_owned(),
            namespace: namespace.unwrap_or("Ledgerline/${AWS::StackName}").to_owned(),
        }
    }

    fn fill(&self, text: &str) -> String {
        text.replace("{{scope}}", &self.scope).replace("{{namespace}}", &self.namespace)
    }
}

/// The words that the texts are filled with.
#[derive(Clone, Default)]
struct Words(BTreeMap<&'static str, String>);

impl Words {
    fn of<L: Aggregates>(
        kind: Kind,
        name: &str,
        application: Option<&str>,
        of: Option<&str>,
    ) -> Result<Self> {
        for name in [Some(name), application].into_iter().flatten() {
            check_name(name)?;
        }
        let category = match kind {
            Kind::Operators | Kind::Workspace => bail!("this has no words"),
            Kind::Aggregate if of.is_some() => bail!("--of is for what is about an aggregate"),
            Kind::Aggregate if application.is_none() => {
                bail!("say --in which application: a new one is laid down too")
            }
            Kind::Projector | Kind::ProcessManager | Kind::Subscription | Kind::Query
                if application.is_some() =>
            {
                bail!("--in is for aggregates: what is --of an aggregate is in the same application")
            }
            // A category is one word: the id in the name of a stream begins after the first dash.
            Kind::Aggregate => {
                let category = name.replace('-', "");
                if categories::<L>().contains(&category.as_str()) {
                    bail!("there is an aggregate with the category {category} already");
                }
                category
            }
            Kind::Projector | Kind::ProcessManager | Kind::Subscription | Kind::Query => {
                of.context("say --of which aggregate")?.to_owned()
            }
        };
        StreamId::new(&category, "1")?;
        match kind {
            Kind::Aggregate => Ok(Self::named(name, &category, application.unwrap_or_default())),
            Kind::Projector
            | Kind::ProcessManager
            | Kind::Subscription
            | Kind::Query
            | Kind::Operators
            | Kind::Workspace => {
                let known = Known::of::<L>(&category)?;
                Self::named(name, &category, &known.application).about(&known)
            }
        }
    }

    /// The words of a name, in an application.
    fn named(name: &str, category: &str, application: &str) -> Self {
        let capital = |words: &str| {
            words.get(..1).unwrap_or_default().to_uppercase() + words.get(1..).unwrap_or_default()
        };
        let words = name.replace('-', " ");
        Self(BTreeMap::from([
            ("Name", upper_camel(name)),
            ("name", name.to_owned()),
            ("module", name.replace('-', "_")),
            ("SNAKE", name.replace('-', "_").to_uppercase()),
            ("Words", capital(&words)),
            ("path", plural(name)),
            ("Plural", capital(&plural(&words))),
            ("plural", plural(&words)),
            ("words", words),
            ("category", category.to_owned()),
            ("a_category", with_article(category)),
            ("id", ID.to_owned()),
            ("App", capital(&application.replace('-', " "))),
            ("crate", application.replace('-', "_")),
            ("app", application.to_owned()),
            ("assumed", ASSUMED.to_owned()),
            ("license", license()),
        ]))
    }

    /// The same words, with one more.
    fn with(mut self, word: &'static str, value: String) -> Self {
        self.0.insert(word, value);
        self
    }

    /// The same words, with those of the aggregate that a projector, query or process manager is
    /// about.
    fn about(mut self, known: &Known) -> Result<Self> {
        let Shape { event, schema, payload, state } = known.shape()?;
        self.0.extend([
            ("Aggregate", known.name.clone()),
            ("aggregate", known.module.clone()),
            ("aggregate_name", known.module.replace('_', "-")),
            ("aggregate_words", known.module.replace('_', " ")),
            ("schema", known.schema.to_string()),
            ("state", state.to_string()),
            ("event", event),
            ("event_schema", schema.to_string()),
            ("payload", payload.to_string()),
        ]);
        Ok(self)
    }

    fn get(&self, word: &str) -> &str {
        self.0.get(word).map_or("", String::as_str)
    }

    /// The folders of the application's packages: the model, the functions.
    fn packages(&self) -> [String; 2] {
        ["model", "functions"].map(|package| format!("crates/apps/{}/{package}", self.get("app")))
    }

    fn fill(&self, text: &str) -> String {
        let filled = self
            .0
            .iter()
            .fold(text.to_owned(), |text, (word, value)| text.replace(&format!("{{{{{word}}}}}"), value));
        // The dashes of headings in the template end in one column.
        let lines = filled.lines().map(|line| match line.strip_suffix("{{dashes}}") {
            Some(heading) => format!("{heading}{}", "-".repeat(114_usize.saturating_sub(heading.len()))),
            None => line.to_owned(),
        });
        lines.map(|line| line + "\n").collect()
    }
}

/// The plural of an English noun, or of words that end with one: `purchase orders`, `categories`.
fn plural(words: &str) -> String {
    let is_vowel = |c: char| "aeiou".contains(c);
    match words.strip_suffix('y') {
        Some(stem) if !stem.ends_with(is_vowel) => format!("{stem}ies"),
        _ if ["s", "x", "z", "ch", "sh"].iter().any(|end| words.ends_with(end)) => format!("{words}es"),
        _ => format!("{words}s"),
    }
}

/// An English noun with its article: `an appointment`.
fn with_article(word: &str) -> String {
    let article = if word.starts_with(|c| "aeiou".contains(c)) { "an" } else { "a" };
    format!("{article} {word}")
}

/// The line about the licence in the manifests of packages; empty if the workspace has not chosen
/// one.
fn license() -> String {
    let manifest = fs::read_to_string("Cargo.toml").unwrap_or_default();
    let chosen = manifest.lines().any(|line| line.starts_with("license = "));
    if chosen { "license.workspace = true\n".to_owned() } else { String::new() }
}

/// Fails if a thing cannot have this name.
fn check_name(name: &str) -> Result<()> {
    let lower = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_lowercase())
            && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
    };
    if !name.split('-').all(lower) {
        bail!(
            "{name:?} is no name: write words of lower-case letters and digits, with dashes in between, such as open-orders"
        );
    }
    let is_taken = KEYWORDS.contains(&name)
        || TYPES.contains(&upper_camel(name).as_str())
        || PACKAGES.contains(&name)
        || name.starts_with("ledgerline-");
    if is_taken {
        bail!("{name} is a word of Rust's or of the code that is laid down: choose another");
    }
    Ok(())
}

/// The policy of a role that says who may take it: Lambda.
const ASSUMED: &str = "{ Version: \"2012-10-17\", Statement: [{ Effect: Allow, Principal: { Service: lambda.amazonaws.com }, Action: sts:AssumeRole }] }";

fn upper_camel(name: &str) -> String {
    name.split('-').map(|part| part[..1].to_uppercase() + &part[1..]).collect()
}

/// An aggregate, with all that is needed to lay down a projector, query or process manager about
/// it.
struct Known {
    application: String,
    name: String,
    module: String,
    category: String,
    events: Vec<String>,
    schema: u32,
}

/// An event and a state that may be in the log, from the aggregate's file of shapes.
struct Shape {
    event: String,
    schema: u64,
    payload: Value,
    state: Value,
}

impl Known {
    fn of<L: Aggregates>(category: &str) -> Result<Self> {
        struct Find<'a>(&'a str, Option<Known>);
        impl Visitor for Find<'_> {
            fn visit<A: Aggregate>(&mut self) {
                if A::CATEGORY == self.0 {
                    let path: Vec<_> = std::any::type_name::<A>().split("::").collect();
                    let [application, .., module, name] = path.as_slice() else { return };
                    self.1 = Some(Known {
                        application: application.replace('_', "-"),
                        name: (*name).to_owned(),
                        module: (*module).to_owned(),
                        category: A::CATEGORY.to_owned(),
                        events: A::Event::TYPES.iter().map(|event| event.name.to_owned()).collect(),
                        schema: A::STATE_SCHEMA,
                    });
                }
            }
        }
        let mut find = Find(category, None);
        L::visit(&mut find);
        let known = categories::<L>().join(", ");
        find.1.with_context(|| format!("no aggregate has the category {category}; there are: {known}"))
    }
}

impl Known {
    /// The newest shape of the first event, and a shape of the current state.
    fn shape(&self) -> Result<Shape> {
        let path = format!("crates/apps/{}/model/shapes/{}.json", self.application, self.category);
        let text = fs::read_to_string(&path).with_context(|| path.clone())?;
        let shapes: Value = serde_json::from_str(&text).with_context(|| path.clone())?;
        let event = self.events.first().cloned().unwrap_or_default();
        let newest = shapes["events"].as_array().into_iter().flatten().filter(|shape| shape["type"] == event);
        let newest = newest.max_by_key(|shape| shape["schema"].as_u64());
        let newest = newest.with_context(|| format!("{path} has no {event}"))?;
        let mut states = shapes["states"].as_array().into_iter().flatten();
        let state = states.find(|shape| shape["schema"] == self.schema);
        let state = state.with_context(|| format!("{path} has no state of schema {}", self.schema))?;
        Ok(Shape {
            event,
            schema: newest["schema"].as_u64().unwrap_or(1),
            payload: newest["data"].clone(),
            state: state["data"].clone(),
        })
    }
}

// --- What is laid down ------------------------------------------------------------------------------------------

/// An application without anything in it.
fn application(words: &Words, change: &mut Change) {
    let [model, functions] = words.packages();
    change.file(format!("{model}/Cargo.toml"), words.fill(text!("model-Cargo.toml")));
    change.file(format!("{model}/.clippy.toml"), text!("clippy.toml").to_owned());
    change.file(format!("{model}/src/lib.rs"), words.fill(text!("model-lib.rs")));
    change.file(format!("{model}/src/views.rs"), words.fill(text!("views.rs")));
    change.file(format!("{functions}/Cargo.toml"), words.fill(text!("functions-Cargo.toml")));
    change.file(format!("{functions}/src/lib.rs"), words.fill(text!("functions-lib.rs")));
    change.file(format!("{functions}/src/commands.rs"), words.fill(text!("functions-commands.rs")));
    change.file(format!("{functions}/tests/proofs.rs"), words.fill(text!("proofs.rs")));
    let app = words.get("app");
    let module = words.get("crate");
    change.application(APPLICATIONS, format!("{app} = {{ path = \"../apps/{app}/model\" }}\n"));
    let all = format!("{module}::All::visit(visitor);");
    change.followed(&format!("{APPLICATIONS}/src/lib.rs"), VISITED, "        ", &all);
    // A workspace without a development binary has no list of its packages.
    if Path::new(HANDLERS).exists() {
        change.application(HANDLERS, format!("{app}-functions = {{ path = \"../apps/{app}/functions\" }}\n"));
        let functions = format!("{module}_functions::HANDLERS,");
        change.followed(&format!("{HANDLERS}/src/main.rs"), HANDLED, "    ", &functions);
    }
}

fn aggregate(words: &Words, change: &mut Change) -> Result<()> {
    let module = words.get("module");
    let name = words.get("name");
    let [model, functions] = words.packages();
    if !Path::new(&model).exists() {
        application(words, change);
    }
    change.file(format!("{model}/src/{module}.rs"), words.fill(text!("domain.rs")));
    change.file(format!("{model}/shapes/{}.json", words.get("category")), words.fill(text!("shapes.json")));
    change.sorted(&format!("{model}/src/lib.rs"), "pub mod ", &format!("{module};"));
    let visit = "        visitor.visit::<";
    change.sorted(&format!("{model}/src/lib.rs"), visit, &format!("{module}::{}>();", words.get("Name")));
    change.file(format!("{functions}/src/commands/{module}.rs"), words.fill(text!("commands.rs")));
    change.sorted(&format!("{functions}/src/commands.rs"), "pub mod ", &format!("{module};"));
    change.file(format!("{functions}/src/bin/{name}-commands.rs"), words.fill(text!("commands-bin.rs")));
    change.handler(
        words,
        "{{module}}_commands: ledgerline_lambda::commands::run(commands::{{module}}::routes());",
    );
    let proofs = format!("{functions}/tests/proofs.rs");
    let whole = words.fill("{{crate}}::{{module}}::{{Name}}");
    change.tried(
        &proofs,
        &format!("aggregate::<{}>({module}, |state| format!(\"{{state:?}}\"))", whole.trim()),
    );
    let routes = words.fill("{{crate}}_functions::commands::{{module}}::routes");
    change.tried(&proofs, &format!("commands(\"{name}-commands\", {})", routes.trim()));
    change.history(&proofs, &words.fill(text!("history.rs")));
    let path = words.get("path");
    let function = format!("{name}-commands");
    let request = |route: &str, raw: &str, parameters: Value, body: Value| {
        words
            .fill(text!("request.json"))
            .replace("{{method}}", "POST")
            .replace("{{route}}", route)
            .replace("{{rawPath}}", raw)
            .replace("{{parameters}}", &parameters.to_string())
            .replace("{{body}}", &body.to_string().replace('"', "\\\""))
    };
    let create = request(
        &format!("POST /{path}"),
        &format!("/{path}"),
        json!({}),
        json!({ "id": ID, "name": "First" }),
    );
    change.sample(&function, "create", create, words.fill(text!("create-answers.json")));
    let rename = request(
        &format!("POST /{path}/{{id}}/name"),
        &format!("/{path}/{ID}/name"),
        json!({ "id": ID }),
        json!({ "name": "Second" }),
    );
    change.sample(&function, "rename", rename, text!("rename-answers.json").to_owned());
    change.section(words, words.fill(text!("commands.yaml")));
    change.loops(&["Functions", "Urls", "Commands"]);
    Ok(())
}

fn state_projector(words: &Words, change: &mut Change) -> Result<()> {
    let module = words.get("module");
    let name = words.get("name");
    let [model, functions] = words.packages();
    change.file(format!("{model}/src/views/{module}.rs"), words.fill(text!("state-read-model.rs")));
    change.sorted(&format!("{model}/src/views.rs"), "pub mod ", &format!("{module};"));
    change.file(
        format!("{functions}/src/bin/{name}-projector.rs"),
        words.fill(text!("state-projector-bin.rs")),
    );
    let view = "::{{crate}}::views::{{module}}::VIEW";
    change.handler(
        words,
        &format!("{{{{module}}}}_projector: ledgerline_lambda::state_projector::run({view});"),
    );
    let mut state: Value = serde_json::from_str(words.get("state"))?;
    let mut row = state.clone();
    (row["id"], row["version"]) = (json!(ID), json!(1));
    change.file(row_shapes(words), shapes_of_rows(&row));
    state["lastKnownVersion"] = json!(1);
    let schema: u32 = words.get("schema").parse()?;
    let stream = format!("{}-{ID}", words.get("category"));
    let detail = json!({
        "stream": stream,
        "aggregate": state,
        "aggregateSchema": schema,
        "lastEvent": {
            "stream": stream,
            "version": 1,
            "index": 0,
            "eventType": words.get("event"),
            "schema": serde_json::from_str::<Value>(words.get("event_schema"))?,
            "payload": serde_json::from_str::<Value>(words.get("payload"))?,
            "at": AT,
        },
        "meta": { "correlationId": "JKJaXmPLvHcESHA=" },
    });
    let event = json!({ "states": [detail] });
    let projected = words.fill("state_projector(\"{{Name}}Table\", {{crate}}::views::{{module}}::VIEW)");
    change.tried(&format!("{functions}/tests/proofs.rs"), projected.trim());
    let answers = answers("a state with its last event, from the fanout", Value::Null)?;
    change.sample(&format!("{name}-projector"), "changed", pretty(&event)?, answers);
    change.section(words, words.fill(text!("state-projector.yaml")));
    change.loops(&["Functions", "StateViews"]);
    Ok(())
}

/// The file with the shapes of a view's rows.
fn row_shapes(words: &Words) -> String {
    let [model, _] = words.packages();
    format!("{model}/shapes/rows/{}.json", words.get("module"))
}

fn shapes_of_rows(row: &Value) -> String {
    format!("[\n  {row}\n]\n")
}

fn log_projector(words: &Words, change: &mut Change) -> Result<()> {
    let module = words.get("module");
    let name = words.get("name");
    let [model, functions] = words.packages();
    change.file(format!("{model}/src/views/{module}.rs"), words.fill(text!("log-read-model.rs")));
    let row = json!({ "owner": ID, "entry": FIRST_ENTRY, "event": words.get("event"), "at": AT });
    change.file(row_shapes(words), shapes_of_rows(&row));
    change.sorted(&format!("{model}/src/views.rs"), "pub mod ", &format!("{module};"));
    change
        .file(format!("{functions}/src/bin/{name}-projector.rs"), words.fill(text!("log-projector-bin.rs")));
    let view = "::{{crate}}::views::{{module}}::VIEW";
    change
        .handler(words, &format!("{{{{module}}}}_projector: ledgerline_lambda::log_projector::run({view});"));
    let projected = words.fill("log_projector(\"{{Name}}Table\", {{crate}}::views::{{module}}::VIEW)");
    change.tried(&format!("{functions}/tests/proofs.rs"), projected.trim());
    change.section(words, words.fill(text!("log-projector.yaml")));
    change.loops(&["Functions", "LogViews"]);
    queued(words, change, &format!("{name}-projector"))
}

/// The file with the list of modules of this kind in the functions of an application. If it is not
/// there, it is laid down too.
fn list_of(functions: &str, kind: &str, text: String, change: &mut Change) -> String {
    let list = format!("{functions}/src/{kind}.rs");
    if !Path::new(&list).exists() {
        change.file(list.clone(), text);
        change.sorted(&format!("{functions}/src/lib.rs"), "pub mod ", &format!("{kind};"));
    }
    list
}

fn query(words: &Words, log: bool, change: &mut Change) -> Result<()> {
    let module = words.get("module");
    let name = words.get("name");
    let [model, functions] = words.packages();
    let view = format!("{model}/src/views/{module}.rs");
    if !Path::new(&view).exists() {
        let log = if log { " --log" } else { "" };
        bail!(
            "there is no read model {name} to answer from ({view}): lay it down first, with `cargo xtask new projector {name} \
             --of {}{log}`",
            words.get("category")
        );
    }
    let table = if log { "LogTable" } else { "StateTable" };
    if !fs::read_to_string(&view)?.contains(&format!("TABLE: {table}")) {
        let (is, say) = if log { ("states", "without") } else { ("the log", "with") };
        bail!("{name} is written from {is}: say it {say} --log");
    }
    let list = list_of(&functions, "queries", words.fill(text!("functions-queries.rs")), change);
    change.sorted(&list, "pub mod ", &format!("{module};"));
    let code = if log { text!("log-query.rs") } else { text!("state-query.rs") };
    change.file(format!("{functions}/src/queries/{module}.rs"), words.fill(code));
    change.file(format!("{functions}/src/bin/{name}-queries.rs"), words.fill(text!("query-bin.rs")));
    change.handler(
        words,
        "{{module}}_queries: ledgerline_lambda::queries::run(queries::{{module}}::routes());",
    );
    let mut request: Value = serde_json::from_str(
        &text!("request.json")
            .replace("{{method}}", "GET")
            .replace("{{route}}", &format!("GET /{name}/{{id}}"))
            .replace("{{rawPath}}", &format!("/{name}/{ID}"))
            .replace("{{parameters}}", &json!({ "id": ID }).to_string())
            .replace("{{body}}", ""),
    )?;
    request.as_object_mut().context("it is an object")?.remove("body");
    let body = if log { json!({}) } else { json!({ "id": ID }) };
    let answers = answers(&format!("`GET /{name}/{{id}}`"), json!({ "statusCode": 200, "body": body }))?;
    change.sample(&format!("{name}-queries"), "get", pretty(&request)?, answers);
    change.section(words, words.fill(text!("query.yaml")));
    change.loops(&["Functions", "Urls"]);
    Ok(())
}

fn process_manager(words: &Words, change: &mut Change) -> Result<()> {
    let module = words.get("module");
    let name = words.get("name");
    let [_, functions] = words.packages();
    let text = words.fill(text!("functions-process-managers.rs"));
    let list = list_of(&functions, "process_managers", text, change);
    change.file(
        format!("{functions}/src/process_managers/{module}.rs"),
        words.fill(text!("process-manager.rs")),
    );
    change.sorted(&list, "pub mod ", &format!("{module};"));
    change.file(format!("{functions}/src/bin/{name}.rs"), words.fill(text!("process-manager-bin.rs")));
    let manager = "process_managers::{{module}}::{{Name}}";
    change.handler(
        words,
        &format!("{{{{module}}}}: ledgerline_lambda::process_manager::run(async |_, _| Ok({manager}));"),
    );
    change.section(words, words.fill(text!("process-manager.yaml")));
    change.loops(&["Functions"]);
    queued(words, change, name)
}

/// A sample of what wakes a function at its time.
const AGAIN: &str = r#"{
  "source": "aws.events",
  "detail-type": "Scheduled Event",
  "time": "2026-11-21T09:30:00Z",
  "detail": {}
}
"#;

fn subscription(words: &Words, change: &mut Change) -> Result<()> {
    let module = words.get("module");
    let name = words.get("name");
    let [model, functions] = words.packages();
    if !has_resource("SequenceTable")? {
        order(change)?;
    }
    change.file(format!("{model}/src/views/{module}.rs"), words.fill(text!("ordered-read-model.rs")));
    let row = json!({
        "part": format!("{:020}", 0),
        "entry": format!("{:020}", 1),
        "stream": format!("{}-{ID}", words.get("category")),
        "event": words.get("event"),
        "at": AT,
    });
    change.file(row_shapes(words), shapes_of_rows(&row));
    change.sorted(&format!("{model}/src/views.rs"), "pub mod ", &format!("{module};"));
    change.file(
        format!("{functions}/src/bin/{name}-subscription.rs"),
        words.fill(text!("subscription-bin.rs")),
    );
    let view = "::{{crate}}::views::{{module}}::VIEW";
    change.handler(
        words,
        &format!("{{{{module}}}}_subscription: ledgerline_lambda::subscription::run({view});"),
    );
    let answers = answers("the schedule: it reads on from its checkpoint", Value::Null)?;
    change.sample(&format!("{name}-subscription"), "again", AGAIN.to_owned(), answers);
    change.section(words, words.fill(text!("subscription.yaml")));
    change.loops(&["Functions"]);
    Ok(())
}

/// Whether the template has this resource.
fn has_resource(id: &str) -> Result<bool> {
    Ok(fs::read_to_string(TEMPLATE).context(TEMPLATE)?.contains(&format!("\n  {id}:\n")))
}

/// What operators need.
fn operators(change: &mut Change) -> Result<()> {
    // Who copied one of the two sections from elsewhere has to copy the other one, too.
    for (id, other) in [("OperationsTable", "ReconcilerFunction"), ("ReconcilerFunction", "OperationsTable")]
    {
        if has_resource(id)? {
            bail!(
                "{id} is there already; if {other} is not, take its section from the template of Ledgerline"
            );
        }
    }
    if !has_resource("SequenceTable")? {
        order(change)?;
    }
    change.inserted(TEMPLATE, "  # --- Watching -", text!("operators.yaml"));
    client(change, "OperatorClient", text!("operators-client.yaml"));
    scope(change, "{ ScopeName: operate, ScopeDescription: Send the commands that only operators may send }");
    change.loops(&["Functions"]);
    change.inserted("crates/fanout/Cargo.toml", "[dependencies]", text!("operators-bin.toml"));
    change.file("crates/fanout/src/reconciler.rs".to_owned(), text!("operators-reconciler.rs").to_owned());
    change.fanout("reconciler: ledgerline_lambda::reconciler::run();");
    let answers = answers("the schedule: it compares the writes of the last two days", Value::Null)?;
    change.sample("reconciler", "daily", AGAIN.to_owned(), answers);
    change.inserted("docs/runbook.md", "## Dead letters", text!("operators-runbook.md"));
    Ok(())
}

/// The order of everything: the function that makes it, and the one that shows it.
fn order(change: &mut Change) -> Result<()> {
    change.inserted(TEMPLATE, "  QueueVisibilityTimeout:", text!("order-parameter.yaml"));
    // A template that is older than the groups of its parameters has none.
    let delivery = "      - Label: { default: Delivery }";
    if fs::read_to_string(TEMPLATE).context(TEMPLATE)?.contains(delivery) {
        change.inserted(TEMPLATE, delivery, text!("order-group.yaml"));
    }
    change.inserted(TEMPLATE, "  # --- Watching -", text!("order.yaml"));
    client(change, "EventsReaderClient", text!("order-client.yaml"));
    scope(change, "{ ScopeName: events, ScopeDescription: Read the events of everybody }");
    let fanout = "crates/fanout";
    change.inserted(&format!("{fanout}/Cargo.toml"), "[dependencies]", text!("order-bins.toml"));
    change.file(format!("{fanout}/src/sequencer.rs"), text!("order-sequencer.rs").to_owned());
    change.file(format!("{fanout}/src/events_queries.rs"), text!("order-events-queries.rs").to_owned());
    change.fanout("events_queries: ledgerline_lambda::events::run::<All>();");
    change.fanout("sequencer: ledgerline_lambda::sequencer::run();");
    change.inserted("docs/runbook.md", "## Dead letters", text!("order-runbook.md"));
    let records = fs::read_to_string("events/fanout/commits.json").context("events/fanout/commits.json")?;
    let applied = answers("commits from the stream", json!({ "batchItemFailures": [] }))?;
    change.sample("sequencer", "commits", records, applied);
    let mut request: Value = serde_json::from_str(
        &text!("request.json")
            .replace("{{method}}", "GET")
            .replace("{{route}}", "GET /events")
            .replace("{{rawPath}}", "/events")
            .replace("{{parameters}}", "{}")
            .replace("{{body}}", ""),
    )?;
    request.as_object_mut().context("it is an object")?.remove("body");
    request["rawQueryString"] = "after=now&limit=10".into();
    let claims = &mut request["requestContext"]["authorizer"]["jwt"];
    (claims["claims"]["scope"], claims["scopes"]) = ("{{scope}}/events".into(), json!(["{{scope}}/events"]));
    let answer = json!({ "statusCode": 200, "body": { "commits": [], "complete": true } });
    let answers = answers("`GET /events`: no commit since the request", answer)?;
    change.sample("events-queries", "now", pretty(&request)?, answers);
    Ok(())
}

/// Adds a client of the user pool, and puts it into the audience of the API.
fn client(change: &mut Change, id: &str, section: &str) {
    change.inserted(TEMPLATE, "  # --- What every function may do -", section);
    let line = format!("                    !If [HasOwnUsers, !Ref {id}, !Ref AWS::NoValue],\n");
    change.inserted(TEMPLATE, "                    !If [HasOtherAudiences,", &line);
}

/// Adds a scope that clients may offer.
fn scope(change: &mut Change, scope: &str) {
    let write = "{ ScopeName: write, ScopeDescription: Send commands to what is one's own }";
    change.replaced(TEMPLATE, write, &format!("{write},\n          {scope}"));
}

/// Adds what a function behind a FIFO queue of commits needs: the queue, its place in the fanout,
/// and a sample message.
fn queued(words: &Words, change: &mut Change, binary: &str) -> Result<()> {
    let (upper, category) = (words.get("Name"), words.get("category"));
    change.loops(&["Queues"]);
    let stream = format!("{category}-{ID}");
    let commit = json!({
        "stream": stream,
        "version": 1,
        "events": [{
            "type": words.get("event"),
            "schema": serde_json::from_str::<Value>(words.get("event_schema"))?,
            "data": words.get("payload"),
        }],
        "command": "01931f6e-0000-7000-8000-000000000001",
        "at": "2026-11-21T09:30:01.123456Z",
        "meta": { "correlationId": "JKJaXmPLvHcESHA=" },
    });
    let event = json!({
        "Records": [{
            "messageId": "059f36b4-87a3-44ab-83d2-661975055711",
            "receiptHandle": "AQEBwJnKyrHigUMZj6rYigCgxlaS3SLy0a",
            "body": commit.to_string(),
            "attributes": {
                "ApproximateReceiveCount": "1",
                "SentTimestamp": "1795253400000",
                "SequenceNumber": "18849649620494251401",
                "MessageGroupId": stream,
                "SenderId": "AROAEXAMPLE:fanout",
                "MessageDeduplicationId": format!("{stream}:1"),
                "ApproximateFirstReceiveTimestamp": "1795253400010",
            },
            "messageAttributes": {},
            "md5OfBody": "00000000000000000000000000000000",
            "eventSource": "aws:sqs",
            "eventSourceARN": format!("arn:aws:sqs:eu-central-1:123456789012:{{{{scope}}}}-{upper}Queue.fifo"),
            "awsRegion": "eu-central-1",
        }],
    });
    let answers = answers("a commit from the queue", json!({ "batchItemFailures": [] }))?;
    change.sample(binary, "commit", pretty(&event)?, answers);
    Ok(())
}

fn pretty(value: &impl Serialize) -> Result<String> {
    Ok(serde_json::to_string_pretty(value)? + "\n")
}

/// The answers to the one sample event of a function.
fn answers(about: &str, answer: Value) -> Result<String> {
    pretty(&[Step { step: 1, about: about.to_owned(), answer }])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_their_english_plural_and_article() {
        for (words, expected) in [
            ("purchase order", "purchase orders"),
            ("category", "categories"),
            ("delivery day", "delivery days"),
            ("address", "addresses"),
            ("box", "boxes"),
            ("branch", "branches"),
        ] {
            assert_eq!(plural(words), expected);
        }
        assert_eq!(
            ["appointment", "invoice", "tank"].map(with_article),
            ["an appointment", "an invoice", "a tank"]
        );
    }
}
