//! The content of each kind of part: files of the starter, and lines in lists. Paths and texts here
//! are those of the starter.

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::{
    Store,
    change::Change,
    facts::Facts,
    names::{Names, upper_camel},
    part_samples,
    starter::{
        self, APPLICATION, COMMANDS, FUNCTIONS, LISTED, LOG, MODEL, ORDERED, REACTS, STATES, SUMS,
    },
};

/// The package with the list of applications.
const APPLICATIONS: &str = "crates/applications";
/// The line before the list of applications.
const VISITED: &str = "    fn visit(visitor: &mut impl Visitor) {";
/// The package of the development binary, with the list of packages that have functions.
const LOCAL: &str = "crates/local";
/// The development binary.
const HANDLERS: &str = "crates/local/src/handlers.rs";
/// The functions that a workspace may lack.
const SEQUENCER: &str = "crates/fanout/src/sequencer.rs";
const RECONCILER: &str = "crates/fanout/src/reconciler.rs";
/// The line before the list of these packages.
const HANDLED: &str = "    // One line for each package with functions.";

/// Adds the workspace's own names that clients and operators see: the prefix of each scope, and the
/// source of the events on the bus.
pub(super) fn own_names(names: Names, application: &str) -> Names {
    let names = part_samples::rename_event_source(names, application);
    let scopes = ["read", "write", "operate", "events"];
    let named = |names: Names, of: &str| {
        names.text(&format!("{APPLICATION}/{of}"), &format!("{application}/{of}"))
    };
    scopes.into_iter().fold(names, named)
}

/// Adds an empty application. If the workspace has a licence (`licensed`), each package names it.
fn application(change: &mut Change, licensed: bool) -> Result<()> {
    for package in [MODEL, FUNCTIONS] {
        let manifest = format!("{package}/Cargo.toml");
        let version = "rust-version.workspace = true\n";
        let license = if licensed { "license.workspace = true\n" } else { "" };
        let text = change.named(starter::file(&manifest)?);
        change.file(&manifest, text.replacen(version, &format!("{version}{license}"), 1));
    }
    change.copy(&[format!("{MODEL}/.clippy.toml")])?;
    let lists = ["src/lib.rs", "src/views.rs"].map(|list| format!("{MODEL}/{list}"));
    change.copy_empty(&lists)?;
    let lists = ["src/lib.rs", "src/commands.rs", "tests/proofs.rs"]
        .map(|list| format!("{FUNCTIONS}/{list}"));
    change.copy_empty(&lists)?;
    change.application(APPLICATIONS, "north-depot = ")?;
    change.followed(&format!("{APPLICATIONS}/src/lib.rs"), VISITED, "north_depot::All")?;
    // A workspace without a development binary has no list of packages with functions.
    if change.has(HANDLERS) {
        change.application(LOCAL, "north-depot-functions = ")?;
        change.followed(HANDLERS, HANDLED, "north_depot_functions::HANDLERS")?;
    }
    Ok(())
}

pub(super) fn aggregate(change: &mut Change) -> Result<()> {
    let is_licensed = change.read("Cargo.toml")?.lines().any(|line| line.starts_with("license = "));
    if !change.has(MODEL) {
        application(change, is_licensed)?;
    }
    change.copy(&[
        format!("{MODEL}/src/stock_item.rs"),
        format!("{MODEL}/shapes/stockitem.json"),
        format!("{FUNCTIONS}/src/commands/stock_item.rs"),
        format!("{FUNCTIONS}/src/bin/stock-item-commands.rs"),
    ])?;
    change.module(&format!("{MODEL}/src/lib.rs"), "stock_item")?;
    change.sorted(&format!("{MODEL}/src/lib.rs"), "        visitor.visit::<", "stock_item::")?;
    change.module(&format!("{FUNCTIONS}/src/commands.rs"), "stock_item")?;
    change.handler("stock_item_commands")?;
    change.tried("stock_item::StockItem>(")?;
    change.tried("\"stock-item-commands\"")?;
    change.history("Stock item")?;
    for case in ["create", "rename"] {
        copy_sample(change, "stock-item-commands", case)?;
    }
    Ok(())
}

/// Adds a sample event of the starter, and its answers.
fn copy_sample(change: &mut Change, function: &str, case: &str) -> Result<()> {
    let sample = part_samples::read_starter(change.names(), function, case)?;
    change.sample(function, case, sample);
    Ok(())
}

/// Adds a view: its module, its function, and the shapes of its rows. In the row of the starter,
/// `fields` get the values of the actual aggregate.
fn view(change: &mut Change, view: &str, function: &str, fields: &[(&str, &Value)]) -> Result<()> {
    let module = view.replace('-', "_");
    change.copy(&[
        format!("{MODEL}/src/views/{module}.rs"),
        format!("{FUNCTIONS}/src/bin/{view}-{function}.rs"),
    ])?;
    change.module(&format!("{MODEL}/src/views.rs"), &module)?;
    row(change, &module)?;
    let shapes = format!("{MODEL}/shapes/rows/{module}.json");
    let mut rows: Vec<Value> = serde_json::from_str(&change.named(starter::file(&shapes)?))?;
    let row = rows.first_mut().with_context(|| format!("{shapes} of the starter has no row"))?;
    for (field, value) in fields {
        row[*field] = (*value).clone();
    }
    change.file(&shapes, format!("[\n  {row}\n]\n"));
    Ok(())
}

/// Declares the function that writes a view, and adds the table to the proofs. A view in PostgreSQL
/// has a script instead, and no table in DynamoDB.
fn declare_projector(change: &mut Change, view: &str, function: &str, store: Store) -> Result<()> {
    if store == Store::Dynamodb {
        change.handler(function)?;
        return change.tried(&format!("\"{}Table\"", upper_camel(view)));
    }
    let module = view.replace('-', "_");
    change.handler_in_postgres(function)?;
    let source = change.named(&format!("{MODEL}/src/views/{module}.rs"));
    let script = format!(
        "/// The indexes of the table in PostgreSQL.\n\
         pub const SQL: &str = include_str!(\"{module}.sql\");\n\n"
    );
    change.inserted(&source, "/// The view.", &script);
    let indexes = "-- The indexes of the table, such as:\n\
                   -- CREATE INDEX IF NOT EXISTS stock_cards_names\n\
                   --   ON {generation}.stock_cards ((row ->> 'name'));\n";
    let indexes = change.named(&indexes.replace("stock_cards", &module));
    change.file(&format!("{MODEL}/src/views/{module}.sql"), indexes);
    let package = "ledgerline-postgres";
    let workspace = change.read("Cargo.toml")?;
    if !workspace.contains(&format!("\n{package} =")) {
        let neighbor = workspace.lines().find(|line| line.starts_with("ledgerline-proofs ="));
        let neighbor = neighbor.context("Cargo.toml does not have ledgerline-proofs")?;
        let line = neighbor.replace("ledgerline-proofs", package) + "\n";
        change.inserted("Cargo.toml", "ledgerline-proofs =", &line);
    }
    let functions = format!("{FUNCTIONS}/Cargo.toml");
    if !change.read(&functions)?.contains(&format!("\n{package}.")) {
        let line = format!("{package}.workspace = true\n");
        change.inserted(&change.named(&functions), "schemars.workspace", &line);
    }
    Ok(())
}

/// Adds the type of the rows of a view to the list of the application.
fn row(change: &mut Change, module: &str) -> Result<()> {
    let library = format!("{MODEL}/src/lib.rs");
    change.sorted(&library, "        visitor.row::<", &format!("views::{module}::"))
}

/// Adds a projector that the fanout invokes with states.
pub(super) fn state_projector(change: &mut Change, facts: &Facts, store: Store) -> Result<()> {
    let sample = part_samples::state(change.names(), facts)?;
    add_state_view(change, facts, sample)?;
    declare_projector(change, STATES, "stock_cards_projector", store)
}

/// Adds a projector that a rule of the bus invokes with the states in events.
pub(super) fn bus_projector(change: &mut Change, facts: &Facts) -> Result<()> {
    let sample = part_samples::entry(change.names(), facts)?;
    add_state_view(change, facts, sample)?;
    declare_projector(change, STATES, "stock_signs_projector", Store::Dynamodb)
}

/// Adds the files that every state projector has.
fn add_state_view(change: &mut Change, facts: &Facts, sample: part_samples::Sample) -> Result<()> {
    let module = STATES.replace('-', "_");
    change.copy(&[
        format!("{MODEL}/src/views/{module}.rs"),
        format!("{FUNCTIONS}/src/bin/{STATES}-projector.rs"),
    ])?;
    change.module(&format!("{MODEL}/src/views.rs"), &module)?;
    row(change, &module)?;
    change.file(
        &format!("{MODEL}/shapes/rows/{module}.json"),
        format!("[\n  {}\n]\n", part_samples::row(facts)),
    );
    change.sample("stock-cards-projector", "changed", sample);
    Ok(())
}

/// Adds a projector that inserts a row for each event.
pub(super) fn log_projector(change: &mut Change, facts: &Facts, store: Store) -> Result<()> {
    view(change, LOG, "projector", &[("event", &facts.event.as_str().into())])?;
    declare_projector(change, LOG, "stock_journal_projector", store)?;
    add_queue_function(change, "stock-journal-projector", facts)
}

/// Adds a projector that adds up values of events.
pub(super) fn sums_projector(change: &mut Change, facts: &Facts, store: Store) -> Result<()> {
    view(change, SUMS, "projector", &[("entry", &facts.event.as_str().into())])?;
    declare_projector(change, SUMS, "stock_totals_projector", store)?;
    add_queue_function(change, "stock-totals-projector", facts)
}

/// Adds the queue and a sample message for a function behind a FIFO queue of commits.
fn add_queue_function(change: &mut Change, function: &str, facts: &Facts) -> Result<()> {
    let sample = part_samples::commit(change.names(), function, facts)?;
    change.sample(function, "commit", sample);
    Ok(())
}

/// Adds a module to the list of modules of this kind in the functions of an application. Adds the
/// list if the application lacks it.
fn module_of(change: &mut Change, kind: &str, module: &str) -> Result<()> {
    let list = format!("{FUNCTIONS}/src/{kind}.rs");
    change.copy(&[format!("{FUNCTIONS}/src/{kind}/{module}.rs")])?;
    if !change.has(&list) {
        change.copy_empty(std::slice::from_ref(&list))?;
        change.module(&format!("{FUNCTIONS}/src/lib.rs"), kind)?;
    }
    change.module(&list, module)
}

/// Adds the function that answers from a view: [`STATES`], [`LOG`], or [`LISTED`].
fn query(change: &mut Change, view: &str, cases: &[&str]) -> Result<()> {
    let module = view.replace('-', "_");
    let list = format!("{FUNCTIONS}/src/queries/{module}.rs");
    if change.has(&list) {
        bail!(
            "{} exists already: add a route to it (docs/recipes.md of ledgerline)",
            change.named(&list)
        );
    }
    module_of(change, "queries", &module)?;
    change.copy(&[format!("{FUNCTIONS}/src/bin/{view}-queries.rs")])?;
    change.handler(&format!("{module}_queries"))?;
    for case in cases {
        copy_sample(change, &format!("{view}-queries"), case)?;
    }
    Ok(())
}

/// Fails unless the workspace has this view of the aggregate, written from states or, with `log`,
/// from the log.
fn has_view(change: &Change, view: &str, log: bool, lay_it_down: &str) -> Result<()> {
    let path = format!("{MODEL}/src/views/{}.rs", view.replace('-', "_"));
    let name = change.named(view);
    if !change.has(&path) {
        bail!(
            "there is no read model {name} ({}): create it first, with `cargo xtask new {lay_it_down}`",
            change.named(&path)
        );
    }
    let text = change.read(&path)?;
    if text.contains("OrderedView") {
        bail!(
            "{name} is the view of a subscription: write its query by hand (docs/architecture.md of ledgerline)"
        );
    }
    if text.contains("pub const SQL") {
        bail!(
            "{name} has its rows in PostgreSQL: write its query by hand (docs/postgres.md of ledgerline)"
        );
    }
    let table = if log { "LogTable" } else { "StateTable" };
    if !text.contains(&format!("TABLE: {table}")) {
        let (is, say) = if log { ("states", "without") } else { ("the log", "with") };
        bail!("{name} is written from {is}: run the command {say} --log");
    }
    if !text.contains(&change.named("crate::stock_item::")) {
        bail!(
            "{name} is a view of another aggregate than {}: give that one with --of",
            change.named("stockitem")
        );
    }
    Ok(())
}

pub(super) fn state_query(change: &mut Change) -> Result<()> {
    has_view(change, STATES, false, &change.named("projector stock-cards --of stockitem"))?;
    query(change, STATES, &["get"])
}

pub(super) fn log_query(change: &mut Change) -> Result<()> {
    has_view(change, LOG, true, &change.named("projector stock-journal --of stockitem --log"))?;
    query(change, LOG, &["get"])
}

/// Adds the function that answers from a state view and lists its rows by a field, and the index
/// for the list. The view must have no index, and its table must be unchanged.
pub(super) fn listed_query(change: &mut Change, field: &str) -> Result<()> {
    has_view(change, LISTED, false, &change.named("projector stock-owners --of stockitem"))?;
    if field == "id" {
        bail!("id is the key of the table: a query without --by shows the row with an id");
    }
    let module = LISTED.replace('-', "_");
    let view = format!("{MODEL}/src/views/{module}.rs");
    let rows = format!("{MODEL}/shapes/rows/{module}.json");
    let shapes: Vec<Value> = serde_json::from_str(&change.read(&rows)?)?;
    if !shapes.iter().any(|row| row[field].is_string()) {
        let fields = shapes.iter().filter_map(Value::as_object).flatten();
        let mut texts: Vec<_> =
            fields.filter(|(_, value)| value.is_string()).map(|(name, _)| &**name).collect();
        texts.sort_unstable();
        texts.dedup();
        let rows = change.named(&rows);
        bail!("no row in {rows} has the text {field}: choose one of {}", texts.join(", "));
    }
    if !change.read(&view)?.contains("indexes: &[]") {
        bail!(
            "{} is not as `cargo xtask new` created it: add the index by hand (docs/recipes.md of ledgerline, \
             \"Add an index to a view\")",
            change.named(&view)
        );
    }
    let index =
        starter::between(&view, "/// The rows with one value of `createdBy`", &["/// The view."])?;
    change.replaced(&view, "indexes: &[]", "indexes: &[BY_CREATED_BY]");
    change.inserted(&change.named(&view), "/// The view.", index);
    query(change, LISTED, &["get", "list"])
}

/// Adds a process manager that reacts to commits.
pub(super) fn process_manager(change: &mut Change, facts: &Facts) -> Result<()> {
    reacts(change, REACTS, facts)
}

/// Adds a process manager that sends due commands to another aggregate.
pub(super) fn commanding(change: &mut Change, facts: &Facts) -> Result<()> {
    let commanded = change.read(&format!("{MODEL}/src/price_tag.rs"));
    let create = change.named("Create(PriceTagName)");
    if !commanded.is_ok_and(|text| text.contains(&create)) {
        send_nothing_yet(change);
    }
    reacts(change, COMMANDS, facts)
}

/// Makes the new process manager send no command, because its aggregate lacks the command of the
/// starter.
fn send_nothing_yet(change: &mut Change) {
    let module = format!("{FUNCTIONS}/src/process_managers/stock_labels.rs");
    for (old, new) in [
        ("price_tag::{Command, PriceTag, PriceTagName}", "price_tag::{Command, PriceTag}"),
        (
            "after a commit: one command after the first commit of a stream.\n///",
            "after a commit: none yet.\n///",
        ),
        (
            "due(commit: &Commit) -> Result<Option<Command>, Invalid> {\n    if commit.version > 1 {\n        \
             return Ok(None);\n    }\n    Ok(Some(Command::Create(PriceTagName::new(commit.stream.id())?)))\n",
            "due(_: &Commit) -> Result<Option<Command>, Invalid> {\n    Ok(None)\n",
        ),
        ("StreamId, spec::valid}", "StreamId}"),
        ("a_command_is_due_after_the_first_commit_of_a_stream", "no_command_is_due_yet"),
        (
            "        assert_eq!(due(&commit(1)).unwrap(), Some(Command::Create(valid(\"1\"))));\n        \
             assert_eq!(due(&commit(2)).unwrap(), None);\n",
            "        assert!(due(&commit(1)).unwrap().is_none());\n",
        ),
    ] {
        change.replaced(&module, old, new);
    }
}

fn reacts(change: &mut Change, name: &str, facts: &Facts) -> Result<()> {
    let module = name.replace('-', "_");
    module_of(change, "process_managers", &module)?;
    change.copy(&[format!("{FUNCTIONS}/src/bin/{name}.rs")])?;
    change.handler(&module)?;
    add_queue_function(change, name, facts)
}

/// Adds a view of all streams in the order of `$all`. The first such view also adds `$all`.
pub(super) fn subscription(change: &mut Change, facts: &Facts) -> Result<()> {
    if !change.has(SEQUENCER) {
        order(change)?;
    }
    view(change, ORDERED, "subscription", &[("event", &facts.event.as_str().into())])?;
    change.handler("stock_diary_subscription")?;
    copy_sample(change, "stock-diary-subscription", "again")?;
    Ok(())
}

/// Adds the policies and the table of operators, and the reconciler. Adds `$all` if the workspace
/// lacks it.
pub(super) fn operators(change: &mut Change) -> Result<()> {
    if change.has(RECONCILER) {
        bail!("{RECONCILER} exists already: the workspace has the part for operators");
    }
    if !change.has(SEQUENCER) {
        order(change)?;
    }
    add_fanout_functions(change, &["reconciler"])?;
    change.copy(&[RECONCILER.to_owned()])?;
    copy_sample(change, "reconciler", "daily")
}

/// Adds `$all`: the sequencer, and the function for `GET /events`.
fn order(change: &mut Change) -> Result<()> {
    add_fanout_functions(change, &["sequencer", "events-queries"])?;
    change
        .copy(&["sequencer", "events_queries"].map(|bin| format!("crates/fanout/src/{bin}.rs")))?;
    copy_sample(change, "events-queries", "now")?;
    let commits = change.read("events/fanout/commits.json")?;
    let answers = change.named(starter::file("tests/answers/sequencer/commits.json")?);
    change.sample("sequencer", "commits", part_samples::Sample { event: commits, answers });
    Ok(())
}

/// Adds functions that belong to no application.
fn add_fanout_functions(change: &mut Change, functions: &[&str]) -> Result<()> {
    let manifest = "crates/fanout/Cargo.toml";
    for function in functions {
        let bin = format!("[[bin]]\nname = \"{function}\"\n");
        let stanza = starter::between(manifest, &bin, &["[[bin]]", "[dependencies]"])?;
        change.inserted(manifest, "[dependencies]", stanza);
        change.fanout(&function.replace('-', "_"))?;
    }
    Ok(())
}
