#![doc = include_str!("../README.md")]
#![expect(clippy::print_stderr, reason = "this is a program for people")]

mod archive_log;
mod command;
mod commits;
mod concurrency;
mod dead_letters;
mod deployed;
mod deployment;
mod doctor;
mod export;
mod https;
mod login;
mod price;
mod reconciliation;
mod records;
mod redeliver;
#[cfg(test)]
mod reference;
mod release;
mod repair;
mod row_values;
mod send_records;
mod skip;
mod standby_generation;
mod stream_rows;
mod subscriber_lists;
mod subscribers;
mod view_folds;
mod view_generations;
mod void_entry;

use std::{
    io::{ErrorKind, IsTerminal, Write},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand};
use comfy_table::{ContentArrangement, Table, presets::NOTHING};
use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};
use ledgerline::{Aggregates, StreamId, Text, categories};
use ledgerline_sam::template::stack_name;
use serde_json::Value;

use crate::deployment::Deployment;

/// Inspect the log of a stack and its subscribers, and repair them. Only --write changes anything.
#[derive(Debug, Parser)]
#[command(name = "ledger")]
struct Ledger {
    #[command(flatten)]
    stack: Stack,
    #[command(subcommand)]
    verb: Verb,
}

/// The default AWS address of the local stack.
const DEFAULT_LOCAL: &str = "http://127.0.0.1:4566";

/// The options that select the stack.
#[derive(Debug, Args)]
struct Stack {
    /// Use this stack instead of the one in samconfig.toml, with the credentials of the AWS CLI.
    #[arg(long, global = true, env = "STACK")]
    stack: Option<String>,
    /// Use the local stack, at its AWS address, instead of AWS.
    #[arg(long, global = true, value_name = "URL", num_args = 0..=1, require_equals = true, default_missing_value = DEFAULT_LOCAL)]
    local: Option<String>,
    /// Use this template of the workspace, and the samconfig.toml beside it, if there are any.
    #[arg(long, global = true, default_value = "template.yaml")]
    template: PathBuf,
    /// Print JSON, one value per line.
    #[arg(long, global = true)]
    json: bool,
}

impl Stack {
    fn name(&self) -> Result<String> {
        let name = self.stack.clone().or_else(|| stack_name(&self.template));
        name.context("no samconfig.toml in the template's folder has a stack_name; name the stack with --stack or the variable STACK")
    }
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List streams with their versions.
    ///
    /// Scans the whole log, and costs its read units, but reads only the keys.
    Streams {
        /// List only streams of this category.
        #[arg(long)]
        category: Option<String>,
        /// List only streams with this text in their names.
        #[arg(long)]
        find: Option<String>,
        /// List only streams whose head has this version or a higher one.
        #[arg(long, value_name = "VERSION", default_value_t = 1)]
        from: u64,
    },
    /// Print the physical names of the stack's resources, or of one, as the AWS CLI needs them.
    Resources {
        /// The logical id of one resource, such as CommitsTable.
        id: Option<String>,
    },
    /// Show the commits of a stream, and the state after them, or the rows that views have of it.
    Show {
        /// The stream: account-163082d2-….
        stream: String,
        /// Show commits up to this version, instead of all.
        #[arg(long)]
        at: Option<u64>,
        /// Show the payloads of the events, and the state.
        #[arg(long)]
        payloads: bool,
        /// Show the rows that each view has of the stream, instead of its commits. Needs
        /// OperatorPolicy.
        #[arg(long, conflicts_with_all = ["at", "payloads"])]
        rows: bool,
    },
    /// Print the commits of all streams as they are appended, until Ctrl-C.
    Tail {
        /// Print only streams of this category.
        #[arg(long)]
        category: Option<String>,
        /// Begin at `beginning`, `now`, or a time.
        #[arg(long, default_value = "now")]
        from: String,
        /// Show the payloads of the events.
        #[arg(long)]
        payloads: bool,
        /// Exit after the newest commit, instead of waiting.
        #[arg(long)]
        once: bool,
    },
    /// Show every commit that one request caused, and the subscribers that have applied it.
    ///
    /// Sorts the commits of all streams by time. Scans the whole log.
    Trace {
        /// The correlation id, which clients send as X-Correlation-Id and functions log.
        correlation_id: String,
        /// Show the payloads of the events.
        #[arg(long)]
        payloads: bool,
    },
    /// Compare the heads of all streams with every subscriber and with `$all`, and find holes in
    /// the log.
    ///
    /// Scans the whole log, and reads each stream's row or position in each view. Exits with 2 if a
    /// commit is missing, a subscriber is ahead of the log or unreadable, or the log has a hole.
    /// `ledger redeliver --missing` delivers missing commits.
    ///
    /// With --values, the function of a view folds streams as in a rebuild, and the tool compares
    /// the stored rows with the result. It finds rows that the deployed code would not write, and
    /// no error in that code. It writes nothing, and prints rows. Exits with 2 if a row differs.
    Reconcile {
        #[command(flatten)]
        options: reconciliation::ReconcileArgs,
        #[command(flatten)]
        values: row_values::ValuesArgs,
    },
    /// Rebuild a view from the whole log, online.
    ///
    /// Live delivery writes the previous rows and the new ones. Without --write, a subcommand prints
    /// what it would do. A rebuild that was killed resumes where it stopped.
    #[command(subcommand)]
    Rebuild(view_generations::Rebuild),
    /// List every subscriber: views, subscriptions and process managers, with tables and
    /// generations.
    Subscribers,
    /// Show the lag of each subscriber behind the log, by the recently written streams.
    ///
    /// Exits with 2 if a subscriber lacks an old commit, is ahead of the log or is unreadable.
    Lag(subscriber_lists::LagArgs),
    /// Redeliver commits to subscribers.
    ///
    /// A subscriber ignores a commit that it has already applied. With --missing, each subscriber
    /// gets only the commits that it lacks. Otherwise the fanout sends the commits to all of them.
    /// Without --write, print the planned redelivery.
    Redeliver(redeliver::RedeliverArgs),
    /// Correct `$all`: make wrong entries void.
    #[command(subcommand)]
    Order(void_entry::Order),
    /// Skip one commit that a subscription cannot apply.
    ///
    /// The subscription's position moves past the commit in every generation, and no row changes.
    /// A commit that the subscription can apply is still applied. Without --write, print whether
    /// the commit is skipped.
    Skip(skip::SkipArgs),
    /// Archive old commits: move their payloads into body objects, and make stubs of their items.
    ///
    /// Selects commits older than --older and below the newest state of their stream, in streams
    /// with at least eight such commits. Readers still read them. Prints the cost, the monthly
    /// saving in US dollars, and the number of objects that no item names. To write, needs the
    /// policies of operators, ArchivePolicy and the parameter ArchiveRole. An archive that was
    /// stopped resumes.
    Archive(archive_log::ArchiveArgs),
    /// Export commits as JSON lines, in a compressed file for each category and month.
    ///
    /// Scans the whole log. Each line is a whole commit, as in a body object (docs/data.md). Exits
    /// with 2 if a commit cannot be read.
    Export(export::ExportArgs),
    /// Send a command for operators, such as the settlement of a stuck transfer, or list these
    /// commands.
    ///
    /// The command goes through the API, so the domain decides, and the log has the reason.
    Command(command::CommandArgs),
    /// Sign in at the stack's user pool with a browser, and print the access token.
    ///
    /// Use it for `ledger command`: export LEDGER_TOKEN="$(ledger login)".
    Login(login::LoginArgs),
    /// List, roll back or promote the live versions of functions.
    #[command(subcommand)]
    Release(release::Release),
    /// Show or change the reserved concurrency of functions.
    ///
    /// Also shows the unreserved concurrency of the account. A reservation of 0 stops a function.
    Concurrency(concurrency::ConcurrencyArgs),
    /// Find changes by hand, and differences from this workspace, in the deployed stack.
    ///
    /// Checks what CloudFormation does not see as drift: reservations, aliases and variables of
    /// functions, disabled sources of events and rules, rules that match no event, and generations
    /// that reads have not used for a day, with their cost. Compares the
    /// manifests with this workspace, and reads the newest commits. Exits with 2 if it finds a
    /// fault. A change set of CloudFormation shows how a template differs.
    Doctor(doctor::DoctorArgs),
    /// Count dead letters by queue, age and reason, show those of a queue, and redrive, park or
    /// discard them.
    ///
    /// Exits with 2 if there are any, or if an action leaves some of the selected ones.
    DeadLetters(dead_letters::DeadLettersArgs),
}

/// Refuses a category that no aggregate has, because such a filter would never match.
fn require_known_category<L: Aggregates>(category: Option<&str>) -> Result<()> {
    let known = categories::<L>();
    match category.filter(|category| !known.contains(category)) {
        Some(category) => {
            bail!("no aggregate has the category `{category}`; choose one of: {}", known.join(", "))
        }
        None => Ok(()),
    }
}

/// The options of a command that can write.
#[derive(Debug, Args)]
struct WriteArgs {
    /// Write, instead of only printing the current state.
    #[arg(long, requires = "why")]
    write: bool,
    /// Record this reason, of 1 to 500 characters, together with the operator.
    #[arg(long)]
    why: Option<Text<500>>,
    /// Do not ask before writing.
    #[arg(long)]
    yes: bool,
}

impl WriteArgs {
    /// Returns the reason; empty if `--why` is missing.
    fn why(&self) -> String {
        self.why.as_ref().map(ToString::to_string).unwrap_or_default()
    }

    /// Asks the operator, unless `--yes` answers the question.
    fn confirm(&self, ask: &str) -> Result<bool> {
        if self.yes {
            return Ok(true);
        }
        if !std::io::stdin().is_terminal() {
            bail!("{ask} There is no terminal for the answer: give --yes");
        }
        write!(std::io::stderr(), "{ask} [y/N] ")?;
        let mut answer = String::new();
        std::io::stdin().read_line(&mut answer)?;
        Ok(["y", "yes"].contains(&answer.trim()))
    }
}

/// The exit code of a command that finds a difference, or does not finish its work.
const FOUND: u8 = 2;

/// Runs the command line for the aggregates `L` of the workspace, and returns the exit code.
#[must_use]
pub fn main<L: Aggregates>() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let done = runtime.context("the runtime cannot start its threads").and_then(|runtime| {
        let Ledger { stack, verb } = Ledger::parse();
        runtime.block_on(run::<L>(&stack, verb))
    });
    match done {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {}", escape_controls(&format!("{error:#}")));
            ExitCode::FAILURE
        }
    }
}

/// Escapes the invisible characters of a text, except line feeds. An error may quote a text of the
/// stack, and such a text must not control the terminal.
fn escape_controls(text: &str) -> String {
    let escaped = |c: char| match c {
        '\n' => c.to_string(),
        c if c.is_control() || ('\u{200b}'..='\u{206f}').contains(&c) || c == '\u{feff}' => {
            c.escape_unicode().to_string()
        }
        c => c.to_string(),
    };
    text.chars().map(escaped).collect()
}

async fn run<L: Aggregates>(stack: &Stack, verb: Verb) -> Result<ExitCode> {
    let out = Output { json: stack.json };
    let deployment = Deployment::find(stack).await?;
    let is_well = match verb {
        Verb::Streams { category, find, from } => {
            require_known_category::<L>(category.as_deref())?;
            let is_wanted = |stream: &StreamId, version| {
                category.as_ref().is_none_or(|category| stream.category() == category)
                    && find.as_ref().is_none_or(|text| stream.as_str().contains(text.as_str()))
                    && version >= from
            };
            commits::list_streams(&deployment, is_wanted, out).await?;
            true
        }
        Verb::Resources { id } => {
            resources(&deployment, id.as_deref(), out)?;
            true
        }
        Verb::Show { stream, at, payloads, rows } => {
            let stream =
                StreamId::try_from(stream).context("the name of the stream is not valid")?;
            if rows {
                stream_rows::show(&deployment, stack, &stream, out).await?
            } else {
                commits::show::<L>(&deployment, &stream, at, payloads, out).await?;
                true
            }
        }
        Verb::Tail { category, from, payloads, once } => {
            require_known_category::<L>(category.as_deref())?;
            commits::tail(&deployment, category, &from, payloads, once, out).await?;
            true
        }
        Verb::Trace { correlation_id, payloads } => {
            commits::trace(&deployment, stack, &correlation_id, payloads, out).await?;
            true
        }
        Verb::Reconcile { options, values } => {
            let is_well = reconciliation::run(&deployment, stack, &options, None, out).await?;
            row_values::run(&deployment, stack, &values, options.younger, out).await? && is_well
        }
        Verb::Subscribers => {
            subscriber_lists::list(&deployment, stack, out).await?;
            true
        }
        Verb::Lag(options) => subscriber_lists::lag(&deployment, stack, &options, out).await?,
        Verb::Redeliver(options) => redeliver::run(&deployment, stack, &options, out).await?,
        Verb::Order(order) => void_entry::run(&deployment, &order, out).await?,
        Verb::Skip(options) => skip::run(&deployment, stack, &options, out).await?,
        Verb::Archive(options) => {
            require_known_category::<L>(Some(&options.category))?;
            archive_log::run(&deployment, stack, &options, out).await?
        }
        Verb::Export(options) => export::run(&deployment, &options, out).await?,
        Verb::Command(options) => command::run(&deployment, stack, &options, out).await?,
        Verb::Login(options) => {
            login::run(&deployment, &options, out).await?;
            true
        }
        Verb::Release(release) => release::run(&deployment, &release, out).await?,
        Verb::Concurrency(options) => concurrency::run(&deployment, &options, out).await?,
        Verb::Doctor(options) => doctor::run::<L>(&deployment, stack, &options, out).await?,
        Verb::DeadLetters(options) => dead_letters::run(&deployment, &options, out).await?,
        Verb::Rebuild(rebuild) => view_generations::run(&deployment, stack, &rebuild, out).await?,
    };
    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::from(FOUND) })
}

/// Prints the physical ids of all resources, or of the resource with this logical id. A physical id
/// is a name, or the URL of a queue.
fn resources(deployment: &Deployment, id: Option<&str>, out: Output) -> Result<()> {
    let row = |(id, kind, name): (&str, &str, &str)| serde_json::json!({ "id": id, "type": kind, "name": name });
    match id {
        None => {
            out.rows(&["id", "type", "name"], &deployment.resources().map(row).collect::<Vec<_>>())
        }
        Some(id) => {
            let found = deployment.resources().find(|(resource, ..)| *resource == id);
            let found = found.with_context(|| {
                format!("the stack has no resource `{id}`: `ledger resources` lists all")
            })?;
            out.line_or_note(&row(found), || found.2.to_owned());
        }
    }
    Ok(())
}

/// The output: tables for people, or JSON for programs.
#[derive(Debug, Clone, Copy)]
struct Output {
    json: bool,
}

impl Output {
    /// Prints these fields of the rows. Each row is an object.
    fn rows(self, fields: &[&str], rows: &[Value]) {
        if self.json {
            rows.iter().for_each(|row| self.line(&row.to_string()));
            return;
        }
        let mut table = Table::new();
        table
            .load_preset(NOTHING)
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_header(fields);
        for row in rows {
            table.add_row(fields.iter().map(|field| match &row[field] {
                Value::String(text) => text.clone(),
                Value::Null => String::new(),
                other
                @ (Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) => {
                    other.to_string()
                }
            }));
        }
        self.line(&table.trim_fmt());
    }

    /// Prints a line. Exits if the reader has closed the pipe, as `head` does.
    fn line(self, text: &str) {
        match writeln!(std::io::stdout(), "{text}") {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
            Err(error) => {
                eprintln!("error: the output cannot be written: {error}");
                std::process::exit(1);
            }
        }
    }

    /// Returns a progress bar for people. It appears after a second.
    fn bar(self, length: u64, template: &str) -> ProgressBar {
        if self.json {
            return ProgressBar::hidden();
        }
        let bar = ProgressBar::new(length);
        bar.set_style(
            ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()),
        );
        bar.enable_steady_tick(Duration::from_secs(1));
        bar
    }

    /// Shows people a task and its elapsed time, until the value is dropped. It appears after a
    /// second.
    fn busy(self, what: &'static str) -> ProgressBar {
        if self.json {
            return ProgressBar::hidden();
        }
        let bar =
            ProgressBar::new_spinner().with_finish(ProgressFinish::AndClear).with_message(what);
        bar.set_style(
            ProgressStyle::with_template("{elapsed_precise} {spinner} {msg}")
                .unwrap_or_else(|_| ProgressStyle::default_spinner()),
        );
        bar.enable_steady_tick(Duration::from_secs(1));
        bar
    }

    /// Prints the value for programs, or the text for people.
    fn line_or_note(self, value: &Value, text: impl FnOnce() -> String) {
        self.line(&if self.json { value.to_string() } else { text() });
    }

    /// Prints a text for people only.
    fn note(self, text: &str) {
        if !self.json {
            self.line(text);
        }
    }
}
