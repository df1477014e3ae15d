//! `cargo xtask new`: lays down an aggregate, a projector or a process manager that compiles, passes and deploys, for
//! somebody to go on from. New files, one line in each list of modules, and what `template.yaml` needs.
//!
//! The texts are in `crates/xtask/new/`; `{{word}}` stands for a word of the name.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use applications::All;
use clap::ValueEnum;
use ledgerline::{Aggregate, Aggregates, StreamId, Visitor};
use serde_json::{Value, json};

use crate::{permissions, tools};

/// Where the applications are listed.
const LIST: &str = "crates/applications/Cargo.toml";

/// What is laid down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// A module of a model, and the function that takes its commands.
    Aggregate,
    /// A read model, and the function that writes it.
    Projector,
    /// A function that does something about events.
    ProcessManager,
}

/// Words that no module can be named.
const KEYWORDS: [&str; 41] = [
    "abstract", "as", "async", "await", "become", "box", "break", "const", "continue", "crate", "do", "dyn",
    "else", "enum", "extern", "false", "final", "fn", "for", "gen", "if", "impl", "in", "let", "loop",
    "macro", "match", "mod", "move", "mut", "override", "priv", "pub", "ref", "return", "self", "static",
    "struct", "trait", "try", "type",
];

/// Types of the modules that are laid down.
const TYPES: [&str; 9] =
    ["Aggregate", "Command", "Commit", "Context", "Event", "Reaction", "Refusal", "Rejection", "State"];

/// The id in the sample events.
const ID: &str = "163082d2-b005-45d7-9eb6-aa1f83efd55d";

macro_rules! text {
    ($name:literal) => {
        include_str!(concat!("../new/", $name, ".txt"))
    };
}

/// Lays it down in the repository that is the current folder.
pub(crate) fn run(
    kind: Kind,
    name: &str,
    application: Option<&str>,
    of: Option<&str>,
    log: bool,
) -> Result<()> {
    if log && kind != Kind::Projector {
        bail!("--log is for projectors");
    }
    let words = Words::of(kind, name, application, of)?;
    let mut change = Change::default();
    match kind {
        Kind::Aggregate => aggregate(&words, &mut change)?,
        Kind::Projector if log => log_projector(&words, &mut change)?,
        Kind::Projector => state_projector(&words, &mut change)?,
        Kind::ProcessManager => process_manager(&words, &mut change)?,
    }
    change.make()?;
    permissions::read(&local::template::tree(Path::new("template.yaml"))?)
        .write(Path::new("docs/permissions"))?;
    // The texts cannot know where a line with the name in it has to break.
    tools::run(std::process::Command::new("cargo").args(["fmt", "--all"]))
}

/// What the texts are filled with.
struct Words(BTreeMap<&'static str, String>);

impl Words {
    fn of(kind: Kind, name: &str, application: Option<&str>, of: Option<&str>) -> Result<Self> {
        let lower = |part: &str| {
            part.starts_with(|c: char| c.is_ascii_lowercase())
                && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
        };
        for name in [Some(name), application].into_iter().flatten() {
            if !name.split('-').all(lower) {
                bail!(
                    "{name:?} is no name: write words of lower-case letters and digits, with dashes in between, such as \
                     open-orders"
                );
            }
            if KEYWORDS.contains(&name) || TYPES.contains(&upper_camel(name).as_str()) {
                bail!("{name} is a word of Rust's or of the code that is laid down: choose another");
            }
        }
        let category = match kind {
            Kind::Aggregate if of.is_some() => bail!("--of is for projectors and process managers"),
            Kind::Aggregate if application.is_none() => {
                bail!("say --in which application: a new one is laid down too")
            }
            Kind::Projector | Kind::ProcessManager if application.is_some() => {
                bail!("--in is for aggregates: what is --of an aggregate is in the same application")
            }
            // One word: what follows the first dash in the name of a stream is the id.
            Kind::Aggregate => {
                let category = name.replace('-', "");
                if categories().contains(&category.as_str()) {
                    bail!("there is an aggregate with the category {category} already");
                }
                category
            }
            Kind::Projector | Kind::ProcessManager => of.context("say --of which aggregate")?.to_owned(),
        };
        StreamId::new(&category, "1")?;
        let words = name.replace('-', " ");
        let mut all = BTreeMap::from([
            ("Name", upper_camel(name)),
            ("name", name.to_owned()),
            ("module", name.replace('-', "_")),
            ("SNAKE", name.replace('-', "_").to_uppercase()),
            ("Words", words[..1].to_uppercase() + &words[1..]),
            ("path", format!("{name}s")),
            ("words", words),
            ("category", category.clone()),
        ]);
        let mut application = application.unwrap_or_default().to_owned();
        if kind != Kind::Aggregate {
            let known = Known::of(&category)?;
            application = known.application;
            all.extend([
                ("Aggregate", known.name),
                ("aggregate", known.module),
                ("events", known.events.join(", ")),
            ]);
            all.extend([("schema", known.schema.to_string()), ("state", known.state.to_string())]);
            all.extend([("event", known.events.first().cloned().unwrap_or_default())]);
        }
        let words = application.replace('-', " ");
        all.insert(
            "App",
            words.get(..1).unwrap_or_default().to_uppercase() + words.get(1..).unwrap_or_default(),
        );
        all.insert("crate", application.replace('-', "_"));
        all.insert("app", application);
        Ok(Self(all))
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
        // Headings of sections in the template end in one column.
        let lines = filled.lines().map(|line| match line.strip_suffix("{{dashes}}") {
            Some(heading) => format!("{heading}{}", "-".repeat(114_usize.saturating_sub(heading.len()))),
            None => line.to_owned(),
        });
        lines.map(|line| line + "\n").collect()
    }
}

fn upper_camel(name: &str) -> String {
    name.split('-').map(|part| part[..1].to_uppercase() + &part[1..]).collect()
}

/// What a projector has to know of its aggregate.
struct Known {
    application: String,
    name: String,
    module: String,
    events: Vec<String>,
    schema: u32,
    state: Value,
}

/// The categories of all aggregates.
pub(crate) fn categories() -> Vec<&'static str> {
    struct Collect(Vec<&'static str>);
    impl Visitor for Collect {
        fn visit<A: Aggregate>(&mut self) {
            self.0.push(A::CATEGORY);
        }
    }
    let mut collect = Collect(Vec::new());
    All::visit(&mut collect);
    collect.0
}

impl Known {
    fn of(category: &str) -> Result<Self> {
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
                        events: A::EVENTS.iter().map(|event| event.name.to_owned()).collect(),
                        schema: A::STATE_SCHEMA,
                        state: serde_json::to_value(A::initial()).unwrap_or_default(),
                    });
                }
            }
        }
        let mut find = Find(category, None);
        All::visit(&mut find);
        let known = categories().join(", ");
        find.1.with_context(|| format!("no aggregate has the category {category}; there are: {known}"))
    }
}

// --- What is laid down ------------------------------------------------------------------------------------------

/// An application without anything in it.
fn application(words: &Words, change: &mut Change) {
    let [model, functions] = words.packages();
    change.file(format!("{model}/Cargo.toml"), words.fill(text!("model-Cargo.toml")));
    change.file(
        format!("{model}/.clippy.toml"),
        include_str!("../../rails/ledgerline/.clippy.toml").to_owned(),
    );
    change.file(format!("{model}/src/lib.rs"), words.fill(text!("model-lib.rs")));
    change.file(format!("{model}/src/views.rs"), words.fill(text!("views.rs")));
    change.file(format!("{functions}/Cargo.toml"), words.fill(text!("functions-Cargo.toml")));
    change.file(format!("{functions}/src/lib.rs"), words.fill(text!("functions-lib.rs")));
    change.file(format!("{functions}/src/commands.rs"), words.fill(text!("functions-commands.rs")));
    let process_managers = words.fill(text!("functions-process-managers.rs"));
    change.file(format!("{functions}/src/process_managers.rs"), process_managers);
    let app = words.get("app");
    change.application(&format!("{app} = {{ path = \"../apps/{app}/model\" }}\n"));
}

fn aggregate(words: &Words, change: &mut Change) -> Result<()> {
    let (module, name) = (words.get("module"), words.get("name"));
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
    let path = words.get("path");
    let events = format!("events/{name}-commands");
    let request = |route: &str, raw: &str, parameters: Value, body: Value| {
        words
            .fill(text!("request.json"))
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
    change.file(format!("{events}/create.json"), create);
    let rename = request(
        &format!("POST /{path}/{{id}}/name"),
        &format!("/{path}/{ID}/name"),
        json!({ "id": ID }),
        json!({ "name": "Second" }),
    );
    change.file(format!("{events}/rename.json"), rename);
    change.file(format!("{events}/answers.md"), words.fill(text!("commands-answers.md")));
    let function = format!("{}Commands", words.get("Name"));
    let what = format!("The function for commands to {}s", words.get("words"));
    change.section(words.fill(text!("commands.yaml")) + &function_alarms(&function, &what));
    Ok(())
}

fn state_projector(words: &Words, change: &mut Change) -> Result<()> {
    let (module, name, upper) = (words.get("module"), words.get("name"), words.get("Name"));
    let [model, functions] = words.packages();
    change.file(format!("{model}/src/views/{module}.rs"), words.fill(text!("state-read-model.rs")));
    change.sorted(&format!("{model}/src/views.rs"), "pub mod ", &format!("{module};"));
    change.file(
        format!("{functions}/src/bin/{name}-projector.rs"),
        words.fill(text!("state-projector-bin.rs")),
    );
    let mut state: Value = serde_json::from_str(words.get("state"))?;
    state["lastKnownVersion"] = json!(1);
    let schema: u32 = words.get("schema").parse()?;
    let stream = format!("{}-{ID}", words.get("category"));
    let event = json!({
        "version": "0",
        "id": "17793124-05d4-b198-2fde-7ededc63b103",
        "detail-type": words.get("event"),
        "source": format!("ledgerline.{}", words.get("category")),
        "account": "123456789012",
        "time": "2026-11-21T09:30:03Z",
        "region": "eu-central-1",
        "resources": [],
        "detail": {
            "stream": stream,
            "aggregate": state,
            "aggregateSchema": schema,
            "lastEvent": {
                "stream": stream,
                "version": 1,
                "index": 0,
                "eventType": words.get("event"),
                "schema": 1,
                "payload": {},
                "at": "2026-11-21T09:30:03.123456Z",
            },
            "meta": { "correlationId": "JKJaXmPLvHcESHA=" },
        },
    });
    let events = format!("events/{name}-projector");
    change.file(format!("{events}/changed.json"), pretty(&event)?);
    let answer = "| changed.json | an event with its state, from the bus | `null` |";
    change.file(format!("{events}/answers.md"), answers(answer));
    let what = format!("The projector of {}", words.get("words"));
    let mut section =
        words.fill(text!("state-projector.yaml")) + &function_alarms(&format!("{upper}Projector"), &what);
    section += &alarm(&Alarm {
        id: format!("{upper}ProjectorUndelivered"),
        description: format!(
            "What the projector of {} gave up could not be put into its dead-letter queue.",
            words.get("words")
        ),
        entry: "undelivered-dead-letters",
        metric: "AWS/Lambda/DestinationDeliveryFailures",
        dimensions: vec![("FunctionName", format!("!Ref {upper}ProjectorFunction"))],
        statistic: "Sum",
        threshold: 0,
    });
    section += &alarm(&Alarm {
        id: format!("{upper}RuleFailures"),
        description: format!("The rule cannot invoke the projector of {}.", words.get("words")),
        entry: "rule-failures",
        metric: "AWS/Events/FailedInvocations",
        dimensions: vec![
            ("EventBusName", "!Ref EventBus".to_owned()),
            ("RuleName", format!("!Sub \"${{AWS::StackName}}-{name}\"")),
        ],
        statistic: "Sum",
        threshold: 0,
    });
    section += &dead_letters(upper, &format!("Events did not reach the {}.", words.get("words")));
    change.section(section);
    Ok(())
}

fn log_projector(words: &Words, change: &mut Change) -> Result<()> {
    let (module, name) = (words.get("module"), words.get("name"));
    let [model, functions] = words.packages();
    change.file(format!("{model}/src/views/{module}.rs"), words.fill(text!("log-read-model.rs")));
    change.sorted(&format!("{model}/src/views.rs"), "pub mod ", &format!("{module};"));
    change
        .file(format!("{functions}/src/bin/{name}-projector.rs"), words.fill(text!("log-projector-bin.rs")));
    let function = format!("{}Projector", words.get("Name"));
    queued(
        words,
        change,
        text!("log-projector.yaml"),
        &function,
        &format!("{name}-projector"),
        "The projector of",
    )
}

fn process_manager(words: &Words, change: &mut Change) -> Result<()> {
    let (module, name) = (words.get("module"), words.get("name"));
    let [_, functions] = words.packages();
    let list = format!("{functions}/src/process_managers.rs");
    if !Path::new(&list).exists() {
        change.file(list, words.fill(text!("functions-process-managers.rs")));
        change.sorted(&format!("{functions}/src/lib.rs"), "pub mod ", "process_managers;");
    }
    change.file(
        format!("{functions}/src/process_managers/{module}.rs"),
        words.fill(text!("process-manager.rs")),
    );
    change.sorted(&format!("{functions}/src/process_managers.rs"), "pub mod ", &format!("{module};"));
    change.file(format!("{functions}/src/bin/{name}.rs"), words.fill(text!("process-manager-bin.rs")));
    queued(words, change, text!("process-manager.yaml"), words.get("Name"), name, "The process manager for")
}

/// What is behind a FIFO queue of commits: the queue, its place in the fanout, the alarms, and a sample message.
fn queued(
    words: &Words,
    change: &mut Change,
    section: &str,
    function: &str,
    binary: &str,
    what: &str,
) -> Result<()> {
    let (upper, category) = (words.get("Name"), words.get("category"));
    let section = words.fill(&section.replace("{{queue}}", text!("queue.yaml")));
    let what = format!("{what} {}", words.get("words"));
    let age = alarm(&Alarm {
        id: format!("{upper}QueueAge"),
        description: format!("A commit waits for {} for more than five minutes.", lower_first(&what)),
        entry: "queue-age",
        metric: "AWS/SQS/ApproximateAgeOfOldestMessage",
        dimensions: vec![("QueueName", format!("!GetAtt {upper}Queue.QueueName"))],
        statistic: "Maximum",
        threshold: 300,
    });
    let letters = dead_letters(upper, &format!("Commits did not get through {}.", lower_first(&what)));
    change.section(section + &function_alarms(function, &what) + &age + &letters);
    change.line(
        "template.yaml",
        "          LOG_QUEUES: !Sub |\n            {\n",
        &format!("              \"${{{upper}Queue}}\": [\"{category}\"],\n"),
    );
    change.line(
        "template.yaml",
        "                  - !GetAtt FanoutDeadLetterQueue.Arn\n",
        &format!("                  - !GetAtt {upper}Queue.Arn\n"),
    );
    let stream = format!("{category}-{ID}");
    let commit = json!({
        "stream": stream,
        "version": 1,
        "events": [{ "type": words.get("event"), "schema": 1, "data": "{}" }],
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
            "eventSourceARN": format!("arn:aws:sqs:eu-central-1:123456789012:ledgerline-{upper}Queue.fifo"),
            "awsRegion": "eu-central-1",
        }],
    });
    change.file(format!("events/{binary}/commit.json"), pretty(&event)?);
    let answer = "| commit.json | a commit from the queue | `{\"batchItemFailures\": []}` |";
    change.file(format!("events/{binary}/answers.md"), answers(answer));
    Ok(())
}

fn pretty(event: &Value) -> Result<String> {
    Ok(serde_json::to_string_pretty(event)? + "\n")
}

fn answers(line: &str) -> String {
    format!("| event | what it is | answer |\n|---|---|---|\n{line}\n")
}

fn lower_first(text: &str) -> String {
    text[..1].to_lowercase() + &text[1..]
}

// --- Alarms -----------------------------------------------------------------------------------------------------

struct Alarm {
    id: String,
    description: String,
    /// The heading in the runbook.
    entry: &'static str,
    /// Namespace and name.
    metric: &'static str,
    dimensions: Vec<(&'static str, String)>,
    statistic: &'static str,
    threshold: u32,
}

fn alarm(alarm: &Alarm) -> String {
    let (namespace, metric) = alarm.metric.rsplit_once('/').unwrap_or_default();
    let dimensions: String = alarm
        .dimensions
        .iter()
        .map(|(name, value)| format!("        - {{ Name: {name}, Value: {value} }}\n"))
        .collect();
    format!(
        "  {}:\n    Type: AWS::CloudWatch::Alarm\n    Properties:\n      \
         AlarmDescription: !Sub \"{} See ${{RunbookUrl}}#{}\"\n      Namespace: {namespace}\n      \
         MetricName: {metric}\n      Dimensions:\n{dimensions}      Statistic: {}\n      Period: 60\n      \
         EvaluationPeriods: 1\n      Threshold: {}\n      ComparisonOperator: GreaterThanThreshold\n      \
         TreatMissingData: notBreaching\n      AlarmActions: [!Ref AlarmTopic]\n      \
         OKActions: [!Ref AlarmTopic]\n\n",
        alarm.id, alarm.description, alarm.entry, alarm.statistic, alarm.threshold
    )
}

fn function_alarms(function: &str, what: &str) -> String {
    [
        ("Errors", "fails or runs out of time.", "function-errors", "AWS/Lambda/Errors"),
        ("Throttles", "is throttled.", "function-throttles", "AWS/Lambda/Throttles"),
    ]
    .map(|(suffix, happens, entry, metric)| {
        alarm(&Alarm {
            id: format!("{function}{suffix}"),
            description: format!("{what} {happens}"),
            entry,
            metric,
            dimensions: vec![("FunctionName", format!("!Ref {function}Function"))],
            statistic: "Sum",
            threshold: 0,
        })
    })
    .concat()
}

fn dead_letters(name: &str, description: &str) -> String {
    alarm(&Alarm {
        id: format!("{name}DeadLetterQueueNotEmpty"),
        description: description.to_owned(),
        entry: "dead-letters",
        metric: "AWS/SQS/ApproximateNumberOfMessagesVisible",
        dimensions: vec![("QueueName", format!("!GetAtt {name}DeadLetterQueue.QueueName"))],
        statistic: "Maximum",
        threshold: 0,
    })
}

// --- Files ------------------------------------------------------------------------------------------------------

/// Where new sections go in the template.
const BEFORE: &str = "  # --- Watching ---";

/// Everything that is about to be written: first all of it is looked at, so that a name that is taken leaves nothing half
/// laid down.
#[derive(Default)]
struct Change {
    files: BTreeMap<PathBuf, String>,
    lines: Vec<(PathBuf, String, String)>,
    /// File, what lines of the list begin with, and the rest of the new one.
    sorted: Vec<(PathBuf, String, String)>,
    applications: Vec<String>,
    sections: Vec<String>,
}

impl Change {
    fn file(&mut self, path: String, text: String) {
        self.files.insert(path.into(), text);
    }

    /// A line that follows the first place where a file says this.
    fn line(&mut self, path: &str, after: &str, line: &str) {
        self.lines.push((path.into(), after.to_owned(), line.to_owned()));
    }

    /// A line of a list, in its alphabetical place: two people who add to a list at the same time rarely meet there.
    fn sorted(&mut self, path: &str, begins: &str, line: &str) {
        self.sorted.push((path.into(), begins.to_owned(), line.to_owned()));
    }

    /// A line of the list of applications.
    fn application(&mut self, line: &str) {
        self.applications.push(line.to_owned());
    }

    fn section(&mut self, text: String) {
        self.sections.push(text);
    }

    fn make(mut self) -> Result<()> {
        if let Some(taken) = self.files.keys().find(|path| path.exists()) {
            bail!("{} is there already: choose another name", taken.display());
        }
        let template = fs::read_to_string("template.yaml").context("template.yaml")?;
        let ids = self.sections.iter().flat_map(|section| section.lines()).filter(|line| {
            line.strip_prefix("  ")
                .is_some_and(|id| id.ends_with(':') && id.starts_with(|c: char| c.is_alphabetic()))
        });
        if let Some(taken) = ids.into_iter().find(|id| template.contains(&format!("\n{id}\n"))) {
            bail!("template.yaml has {} already: choose another name", taken.trim_matches([' ', ':']));
        }
        let mut changed = BTreeMap::<PathBuf, String>::new();
        let mut edit = |path: &Path, place: &str, insert: &dyn Fn(&str, &str) -> String| -> Result<()> {
            let text = match changed.get(path) {
                Some(text) => text.clone(),
                None => fs::read_to_string(path).with_context(|| path.display().to_string())?,
            };
            let (before, after) = text
                .split_once(place)
                .with_context(|| format!("{} does not have the line {}", path.display(), place.trim()))?;
            changed.insert(path.to_owned(), insert(before, after));
            Ok(())
        };
        for (path, place, line) in &self.lines {
            edit(path, place, &|before, after| format!("{before}{place}{line}{after}"))?;
        }
        for section in &self.sections {
            edit(Path::new("template.yaml"), BEFORE, &|before, after| {
                format!("{before}{section}{BEFORE}{after}")
            })?;
        }
        for (path, begins, line) in &self.sorted {
            let text = match self.files.get(path).or(changed.get(path)) {
                Some(text) => text.clone(),
                None => fs::read_to_string(path).with_context(|| path.display().to_string())?,
            };
            let text = with_line(&text, begins, line);
            match self.files.get_mut(path) {
                Some(file) => *file = text,
                None => _ = changed.insert(path.clone(), text),
            }
        }
        if !self.applications.is_empty() {
            let mut text = fs::read_to_string(LIST).context(LIST)?;
            for line in &self.applications {
                text = with_application(&text, line)?;
            }
            changed.insert(LIST.into(), text);
        }
        for (path, text) in self.files.iter().chain(&changed) {
            if let Some(folder) = path.parent() {
                fs::create_dir_all(folder)?;
            }
            fs::write(path, text).with_context(|| path.display().to_string())?;
        }
        Ok(())
    }
}

/// The text with one more line in the list of lines that begin like this, in its alphabetical place. The first one of a list
/// stands where the file's documentation ends, or in the body that waits for it.
fn with_line(text: &str, begins: &str, line: &str) -> String {
    let new = format!("{begins}{line}");
    let mut lines: Vec<&str> = text.lines().collect();
    let listed = || lines.iter().enumerate().filter(|(_, line)| line.starts_with(begins));
    let place = listed()
        .find(|(_, line)| **line > new.as_str())
        .map(|(place, _)| place)
        .or_else(|| listed().next_back().map(|(place, _)| place + 1));
    let place = place.unwrap_or_else(|| {
        let opens = lines.iter().position(|line| line.contains("fn visit("));
        match begins.starts_with(' ').then_some(opens).flatten() {
            Some(opens) => opens + 1,
            None => lines.iter().take_while(|line| line.starts_with("//!") || line.is_empty()).count(),
        }
    });
    lines.insert(place, &new);
    lines.join("\n") + "\n"
}

/// The list of applications with one more, in its alphabetical place.
fn with_application(list: &str, line: &str) -> Result<String> {
    let is_one = |listed: &&str| listed.contains("path = \"../apps/");
    let after = list.lines().filter(is_one).find(|listed| *listed > line);
    let place = match after {
        Some(after) => list.find(after),
        None => list.lines().rfind(is_one).and_then(|last| Some(list.find(last)? + last.len() + 1)),
    };
    let place = place.with_context(|| format!("{LIST} lists no application"))?;
    let (before, after) = list.split_at(place);
    Ok(format!("{before}{line}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_a_list_stands_in_its_alphabetical_place() {
        let list = "//! Views.\n\npub mod b;\npub mod d;\n\nuse x;\n";
        for (module, expected) in [
            ("a;", "//! Views.\n\npub mod a;\npub mod b;\npub mod d;\n\nuse x;\n"),
            ("c;", "//! Views.\n\npub mod b;\npub mod c;\npub mod d;\n\nuse x;\n"),
            ("e;", "//! Views.\n\npub mod b;\npub mod d;\npub mod e;\n\nuse x;\n"),
        ] {
            assert_eq!(with_line(list, "pub mod ", module), expected);
        }
        assert_eq!(with_line("//! Views.\n\n", "pub mod ", "a;"), "//! Views.\n\npub mod a;\n");
        let body = "    fn visit(v: V) {\n    }\n";
        assert_eq!(
            with_line(body, "        v.visit::<", "A>();"),
            "    fn visit(v: V) {\n        v.visit::<A>();\n    }\n"
        );
    }

    #[test]
    fn an_application_stands_in_its_alphabetical_place() {
        let line = |name: &str| format!("{name} = {{ path = \"../apps/{name}/model\" }}\n");
        let list = |names: &[&str]| {
            let lines: String = names.iter().map(|name| line(name)).collect();
            format!("[dependencies]\nledgerline.workspace = true\n{lines}\n[build-dependencies]\n")
        };
        for (name, expected) in [("a", ["a", "b", "d"]), ("c", ["b", "c", "d"]), ("e", ["b", "d", "e"])] {
            assert_eq!(with_application(&list(&["b", "d"]), &line(name)).unwrap(), list(&expected));
        }
    }
}
