//! `cargo xtask new`: creates a part of a workspace, such as an aggregate, a projector, a query or
//! a process manager. The part compiles, passes its tests and deploys, as a start for more code. It
//! consists of new files and one line in each list of modules; `cargo xtask wire` makes the template.
//!
//! The command also creates a whole workspace with an aggregate, a projector of each kind and a
//! query. All texts are those of the [`starter`], with other names.

mod change;
mod facts;
mod names;
pub(crate) mod part_samples;
mod parts;
mod runbook;
mod starter;
pub(crate) mod workspace;

use std::path::Path;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use ledgerline::{Aggregates, StreamId, categories};
use ledgerline_sam::generate::{Application, Deploy};

pub(crate) use self::change::TEMPLATE;
use self::{
    change::{Change, restore},
    facts::{Facts, Known},
    names::Names,
    starter::{
        AGGREGATE, APPLICATION, COMMANDED, COMMANDS, LISTED, LOG, ON_BUS, ORDERED, REACTS, STATES,
        SUMS,
    },
};
use crate::{tools, wire};

/// The kind of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// An aggregate in a model, and the function that handles its commands.
    Aggregate,
    /// A read model, and the function that writes it.
    Projector,
    /// A function that reacts to events.
    ProcessManager,
    /// A function that applies the commits of all streams, in the order of `$all`, to a read model.
    /// The first subscription also creates `$all`: the sequencer, and the function for `GET
    /// /events`.
    Subscription,
    /// A function that answers from a read model.
    Query,
    /// The part for operators: policies for their roles, the table of their actions, and the
    /// reconciler. A workspace has one such part, without a name. The part adds `$all` if the
    /// workspace lacks it.
    Operators,
    /// A workspace with a small application. Its name is the folder, which must be new or empty.
    Workspace,
}

/// The source of a projector's states.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Via {
    /// The fanout invokes the projector.
    Fanout,
    /// A rule of the EventBridge bus invokes the projector.
    Bus,
}

/// The store of a projector's view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Store {
    /// A table in DynamoDB.
    Dynamodb,
    /// A table in PostgreSQL.
    Postgres,
}

/// The arguments of `cargo xtask new`.
#[derive(Debug, Args)]
pub(crate) struct Part {
    /// The kind of the part.
    pub(crate) kind: Kind,
    /// The name: lower-case words with dashes. For a workspace, this is the folder, whose last part
    /// is such a name. `operators` has no name.
    name: Option<String>,
    /// The application of a new aggregate. If the application does not exist, the command creates
    /// it.
    #[arg(long = "in", value_name = "APPLICATION")]
    application: Option<String>,
    /// The category of a new aggregate, in one word. Without the option, this is the name, unless
    /// it has dashes. All streams have the category in their names, for ever.
    #[arg(long, value_name = "WORD")]
    category: Option<String>,
    /// The aggregate of a projector, subscription, query or process manager, by its category.
    #[arg(long, value_name = "CATEGORY")]
    of: Option<String>,
    /// Create a projector that inserts a row for each event, from the log instead of states. Or
    /// create a query for the rows of such a projector.
    #[arg(long)]
    log: bool,
    /// Create a projector that adds up values of events, from the log.
    #[arg(long, conflicts_with = "log")]
    sums: bool,
    /// The source of a projector's states: the fanout, which is cheapest, or the bus, which other
    /// consumers can use too.
    #[arg(long, value_name = "SOURCE", conflicts_with_all = ["log", "sums"])]
    via: Option<Via>,
    /// The store of the view of a projector that gets commits from the log, or states from the
    /// fanout.
    #[arg(long, value_name = "STORE", conflicts_with = "via")]
    store: Option<Store>,
    /// Create a query that also lists the rows with one value of this field, and the index for the
    /// list.
    #[arg(long, value_name = "FIELD", conflicts_with = "log")]
    by: Option<String>,
    /// Create a process manager that sends commands to the aggregate with this category.
    #[arg(long, value_name = "CATEGORY")]
    commands: Option<String>,
}

impl Part {
    /// Fails if an option is not for this kind of part.
    fn check(&self) -> Result<()> {
        let Self { kind, application, category, of, log, sums, via, store, by, commands, .. } =
            self;
        let of_log = matches!(kind, Kind::Projector | Kind::Query);
        for (is_given, is_right, message) in [
            (*log, of_log, "--log is for projectors and queries"),
            (*sums, *kind == Kind::Projector, "--sums is for projectors"),
            (via.is_some(), *kind == Kind::Projector, "--via is for projectors"),
            (store.is_some(), *kind == Kind::Projector, "--store is for projectors"),
            (by.is_some(), *kind == Kind::Query, "--by is for queries"),
            (
                commands.is_some(),
                *kind == Kind::ProcessManager,
                "--commands is for process managers",
            ),
            (
                of.is_some(),
                !matches!(kind, Kind::Aggregate | Kind::Operators | Kind::Workspace),
                "--of is not for this kind",
            ),
            (
                category.is_some(),
                *kind == Kind::Aggregate,
                "--category is for aggregates: give other parts the category of theirs with --of",
            ),
            (
                application.is_some(),
                *kind == Kind::Aggregate,
                "--in is for aggregates: other parts are in the application of their aggregate",
            ),
        ] {
            if is_given && !is_right {
                bail!(message);
            }
        }
        Ok(())
    }

    fn store(&self) -> Store {
        self.store.unwrap_or(Store::Dynamodb)
    }

    fn is_on_bus(&self) -> bool {
        self.via == Some(Via::Bus)
    }

    /// Returns the name of the part in the starter from which the new part is copied.
    fn in_starter(&self) -> &'static str {
        match self.kind {
            Kind::Aggregate => AGGREGATE,
            Kind::Projector if self.sums => SUMS,
            Kind::Projector if self.is_on_bus() => ON_BUS,
            Kind::Projector | Kind::Query if self.log => LOG,
            Kind::Query if self.by.is_some() => LISTED,
            Kind::Projector | Kind::Query => STATES,
            Kind::ProcessManager if self.commands.is_some() => COMMANDS,
            Kind::ProcessManager => REACTS,
            Kind::Subscription => ORDERED,
            Kind::Operators | Kind::Workspace => APPLICATION,
        }
    }
}

/// The new names of a part, and the facts about its aggregate.
struct Plan {
    names: Names,
    facts: Option<Facts>,
}

impl Plan {
    fn new<L: Aggregates>(part: &Part, root: &Path) -> Result<Self> {
        if part.kind == Kind::Operators {
            if part.name.is_some() {
                bail!("operators takes no name: omit it");
            }
            return Ok(Self { names: Names::default(), facts: None });
        }
        let name = part.name.as_deref().context("give a name")?;
        names::check(name)?;
        let names = Names::default();
        if part.kind == Kind::Aggregate {
            let application = part.application.as_deref();
            let application =
                application.context("give --in APPLICATION: a new application is created too")?;
            names::check(application)?;
            // A category is one word: the id in the name of a stream begins after the first dash.
            let category = match &part.category {
                Some(category) => category.clone(),
                None if name.contains('-') => bail!(
                    "the category of `{name}` is one word, and all streams have it in their names \
                     for ever: give it with --category, such as {}",
                    name.replace('-', "")
                ),
                None => name.to_owned(),
            };
            if categories::<L>().contains(&category.as_str()) {
                bail!("an aggregate with the category `{category}` exists already");
            }
            StreamId::new(&category, "1")?;
            let names = names.name(APPLICATION, application);
            let names = names.aggregate(AGGREGATE, name, &names::upper_camel(name), &category);
            return Ok(Self { names, facts: None });
        }
        let category = part.of.as_deref().context("give --of CATEGORY")?;
        let known = Known::find::<L>(category)?;
        let names = names
            .name(APPLICATION, &known.application)
            .aggregate(AGGREGATE, &known.name, &known.of_type, category)
            .name(part.in_starter(), name);
        // A projector on the bus is copied from the text of both state views: `STATES` and
        // `ON_BUS`.
        let names = if part.is_on_bus() { names.name(STATES, name) } else { names };
        let names = match part.by.as_deref() {
            Some(field) => with_field(names, name, field)?,
            None => names,
        };
        let names = match part.commands.as_deref() {
            Some(commanded) => with_commanded::<L>(names, &known, category, commanded)?,
            None => names,
        };
        Ok(Self { names, facts: Some(Facts::read(root, category)?) })
    }
}

/// Adds the field by which a query lists rows to the names.
fn with_field(names: Names, view: &str, field: &str) -> Result<Names> {
    let is_of_field = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if !field.starts_with(|c: char| c.is_ascii_lowercase()) || !field.chars().all(is_of_field) {
        bail!("{field:?} is no field of a row: write it as in the rows, such as createdBy");
    }
    let dashed: String = field
        .chars()
        .flat_map(|c| {
            c.is_ascii_uppercase().then_some('-').into_iter().chain([c.to_ascii_lowercase()])
        })
        .map(|c| if c == '_' { '-' } else { c })
        .collect();
    // Such a query is copied from the text of both state views: `STATES` and `LISTED`.
    Ok(names
        .name("by-created-by", &format!("by-{dashed}"))
        .text("byCreatedBy", &index_name(&dashed))
        .text("createdBy", field)
        .name(STATES, view))
}

/// Returns the name of the index of this field.
fn index_name(dashed: &str) -> String {
    format!("by{}", names::upper_camel(dashed))
}

/// Adds the aggregate to which a process manager sends commands to the names.
fn with_commanded<L: Aggregates>(
    names: Names,
    of: &Known,
    category: &str,
    commanded: &str,
) -> Result<Names> {
    let known = Known::find::<L>(commanded)?;
    if commanded == category {
        bail!(
            "a process manager of {category} that sends commands to {category} would never end: name another aggregate"
        );
    }
    if known.application != of.application {
        bail!(
            "{commanded} is of the application {}, and {category} of {}: a process manager sends commands to \
             aggregates of its own application",
            known.application,
            of.application
        );
    }
    Ok(names.aggregate(COMMANDED, &known.name, &known.of_type, commanded))
}

/// Creates a part in the workspace of the current folder, or a new workspace.
pub(crate) fn run<L: Aggregates>(part: &Part) -> Result<()> {
    part.check()?;
    if part.kind == Kind::Workspace {
        return workspace::lay_down(Path::new(
            part.name.as_deref().context("give the folder of the new workspace")?,
        ));
    }
    let root = Path::new("");
    let plan = Plan::new::<L>(part, root)?;
    let application = Application::read(root, &Deploy::read(root)?)?;
    let names = parts::own_names(plan.names.clone(), &application.name);
    let mut change = Change::new(root, names.clone());
    lay_down(part, plan.facts.as_ref(), &mut change)?;
    let replaced = change.make()?;
    // The manifest of the function, and so a resource whose name is taken, is known only after the
    // workspace builds.
    if let Err(error) =
        finish(root).and_then(|()| wire::run(Path::new(TEMPLATE), wire::Mode::Write, &[]))
    {
        let cause =
            "nothing was created; if the workspace builds, the name exists already: choose another";
        return restore(root, replaced)
            .context(format!("{error:#}"))
            .and(Err(error.context(cause)));
    }
    println!("\n{}", next_steps(part, &names));
    Ok(())
}

/// Adds a part to the change. `facts` are those of the part's aggregate.
fn lay_down(part: &Part, facts: Option<&Facts>, change: &mut Change) -> Result<()> {
    let facts = || facts.context("give --of CATEGORY");
    match part.kind {
        Kind::Aggregate => parts::aggregate(change),
        Kind::Projector if part.sums => parts::sums_projector(change, facts()?, part.store()),
        Kind::Projector if part.log => parts::log_projector(change, facts()?, part.store()),
        Kind::Projector if part.is_on_bus() => parts::bus_projector(change, facts()?),
        Kind::Projector => parts::state_projector(change, facts()?, part.store()),
        Kind::ProcessManager if part.commands.is_some() => parts::commanding(change, facts()?),
        Kind::ProcessManager => parts::process_manager(change, facts()?),
        Kind::Subscription => parts::subscription(change, facts()?),
        Kind::Query if part.log => parts::log_query(change),
        Kind::Query => match part.by.as_deref() {
            Some(field) => parts::listed_query(change, field),
            None => parts::state_query(change),
        },
        Kind::Operators => parts::operators(change),
        Kind::Workspace => bail!("a workspace cannot be created in another one"),
    }
}

/// Formats the code, because the length of a new name changes where lines break.
fn finish(root: &Path) -> Result<()> {
    let mut cargo = std::process::Command::new("cargo");
    if root != Path::new("") {
        cargo.current_dir(root);
    }
    tools::run(cargo.arg("fmt"))
}

/// Returns the next steps of the user, one line each.
fn next_steps(part: &Part, names: &Names) -> String {
    let application = names.rename(&format!("crates/apps/{APPLICATION}"));
    let name = part.name.as_deref().unwrap_or_default();
    let module = name.replace('-', "_");
    let model = format!("{application}/model/src");
    let functions = format!("{application}/functions/src");
    let test = names.rename(&format!("cargo test -p {APPLICATION}"));
    let category = names.rename("stockitem");
    let mut steps = match part.kind {
        Kind::Aggregate => vec![
            ("its rules", format!("{model}/{module}.rs, tested by: {test}")),
            (
                "try it",
                names.rename("cargo run -p local, and then: curl -i localhost:3000/stock-items -d '{\"name\": \"First\"}'"),
            ),
            ("a view of it", format!("cargo xtask new projector NAME --of {category}")),
        ],
        Kind::Projector => {
            let log = if part.log || part.sums { " --log" } else { "" };
            let read = match part.store() {
                Store::Dynamodb => format!("cargo xtask new query {name} --of {category}{log}"),
                Store::Postgres => "docs/postgres.md of ledgerline".to_owned(),
            };
            let rows = format!("{model}/views/{module}.rs, tested by: {test}");
            vec![("its rows", rows), ("read it", read)]
        }
        Kind::Subscription => vec![
            ("its rows", format!("{model}/views/{module}.rs, tested by: {test}")),
            ("its order", names.rename(&format!("GET /events, with the scope {APPLICATION}/events"))),
        ],
        Kind::Query => vec![
            ("its readers", format!("{functions}/queries/{module}.rs: every signed-in caller")),
            ("try it", format!("cargo run -p local, and then: curl localhost:3000/{name}/ID")),
        ],
        Kind::ProcessManager => vec![
            ("its code", format!("{functions}/process_managers/{module}.rs, tested by: {test}-functions")),
            ("try it", "cargo run -p local".to_owned()),
        ],
        Kind::Operators => vec![
            (
                "its operators",
                "attach the policies OperatorReadPolicy and OperatorPolicy of the stack to their roles".to_owned(),
            ),
            ("their tool", "cargo run -p ledger -- --help, and docs/runbook.md".to_owned()),
        ],
        Kind::Workspace => Vec::new(),
    };
    // This program does not contain the types of the new part, so it cannot write their schemas.
    steps.push(("its contract", "cargo xtask schemas".to_owned()));
    steps.push(("check it all", "cargo xtask check, and cargo test --workspace".to_owned()));
    let place = if part.kind == Kind::Operators {
        "template.yaml, crates/fanout, events, tests/answers and docs/runbook.md, with the order of all commits \
         and GET /events if they were not there"
    } else {
        &application
    };
    let steps = steps.into_iter().map(|(what, how)| format!("\n  {what:<15} {how}"));
    format!("Created in {place}. Next:{}", steps.collect::<String>())
}
