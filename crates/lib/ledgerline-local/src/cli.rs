//! The command line of the program that `cargo run -p local` runs in a workspace.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result, anyhow, bail};
use clap::Parser;
use ledgerline::{Aggregates, shapes::unreadable};
use ledgerline_dynamodb::{DynamoDbStore, ScanPart};
use ledgerline_sam::template::{DATABASE_HOST, SEARCH_ENDPOINT, Source, WEB_APP};
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    contract, descriptors, output,
    postgres::PostgresServer,
    search::SearchServer,
    stack::{Options, Stack},
    web_app,
};

/// Run template.yaml on this machine.
///
/// DynamoDB, SQS and EventBridge are emulated in this process, and the functions run behind a
/// Lambda Runtime API. Needs no Docker, no account and no network.
#[derive(Debug, Parser)]
#[command(name = "local")]
struct Arguments {
    /// Run this template.
    #[arg(long, default_value = "template.yaml")]
    template: PathBuf,
    /// Serve the HTTP API on this port of 127.0.0.1; 0 takes any free port.
    #[arg(long, default_value_t = 3000)]
    port: u16,
    /// Serve the emulated AWS services at this address, for the AWS CLI and `sam local`.
    ///
    /// Port 0 takes any free port. Containers on Linux reach 172.17.0.1:4566.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:4566")]
    aws_address: SocketAddr,
    /// Use this user for requests to the HTTP API without a token.
    ///
    /// `Authorization: Bearer bob` makes a request come from bob.
    #[arg(long, value_name = "NAME", default_value = "developer")]
    user: String,
    /// Write the functions' environment into this file, as `sam local --env-vars` reads it.
    #[arg(long, value_name = "FILE")]
    env_vars: Option<PathBuf>,
    /// Store the data in this folder, and resume with the data in it.
    ///
    /// Without this option, the data is in memory.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Start a PostgreSQL server for the views in PostgreSQL, or use the database of this URL.
    ///
    /// Needs Debian's package `postgresql`, unless a URL is given.
    #[arg(long, value_name = "URL", num_args = 0..=1, require_equals = true)]
    postgres: Option<Option<String>>,
    /// Start a small server for the views in OpenSearch, or use the domain of this URL.
    ///
    /// The server stands for OpenSearch: it searches by words, and keeps the rows in memory.
    #[arg(long, value_name = "URL", num_args = 0..=1, require_equals = true)]
    search: Option<Option<String>>,
    /// Set these parameters of the template, as for `sam deploy`.
    #[arg(long, value_name = "NAME=VALUE", num_args = 1.., value_parser = parameter)]
    parameter_overrides: Vec<(String, String)>,
    /// Show all log lines of the functions, not only warnings and errors.
    #[arg(long)]
    logs: bool,
    /// Do not print a line for each hop of an event.
    #[arg(long)]
    quiet: bool,
    /// Rebuild and replace functions whose code changes, without stopping or losing data.
    #[arg(long)]
    watch: bool,
    /// Run the functions' own binaries, as SAM ships them, instead of the development binary
    /// (crates/handlers).
    #[arg(long)]
    own_binaries: bool,
}

fn parameter(text: &str) -> Result<(String, String)> {
    let (name, value) = text.split_once('=').ok_or_else(|| anyhow!("write NAME=VALUE"))?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Runs the local stack with the options of the command line, until Ctrl-C. The program `local` of
/// a workspace calls this function with the workspace's aggregates, behind an allocator of its
/// choice.
pub fn main<L: Aggregates>() -> ExitCode {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let run = |runtime: tokio::runtime::Runtime| {
        let done = runtime.block_on(run::<L>(arguments));
        // Cargo may be building for `--watch`, and the process does not wait for it.
        runtime.shutdown_background();
        done
    };
    match runtime.context("the runtime cannot start its threads").and_then(run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::error_line(format_args!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Returns the resources that are not emulated, counted by type.
fn not_emulated(ignored: &[(String, String)]) -> String {
    let mut kinds = BTreeMap::<_, usize>::new();
    for (_, kind) in ignored {
        *kinds.entry(kind.trim_start_matches("AWS::")).or_default() += 1;
    }
    kinds.iter().map(|(kind, count)| format!("{kind} ({count})")).collect::<Vec<_>>().join(", ")
}

/// Returns the parameters of a template that name a sender of mails and have no value. A condition
/// on `ses:FromAddress`, which limits the senders of a role, refers to such a parameter.
fn senders_without_value(template: &Value) -> BTreeSet<String> {
    fn referred(value: &Value, is_sender: bool, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(fields) => {
                let name = fields.get("Ref").and_then(Value::as_str).filter(|_| is_sender);
                found.extend(name.map(ToOwned::to_owned));
                for (key, value) in fields {
                    referred(
                        value,
                        is_sender || key.eq_ignore_ascii_case("ses:FromAddress"),
                        found,
                    );
                }
            }
            Value::Array(values) => {
                values.iter().for_each(|value| referred(value, is_sender, found))
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    let mut found = BTreeSet::new();
    referred(&template["Resources"], false, &mut found);
    found.retain(|name| {
        let parameter = &template["Parameters"][name];
        parameter.is_object() && parameter["Default"].as_str().unwrap_or_default().is_empty()
    });
    found
}

async fn run<L: Aggregates>(arguments: Arguments) -> Result<()> {
    if let Some(warning) = descriptors::raise_limit() {
        output::error_line(format_args!("warning: {warning}"));
    }
    let place = match &arguments.data {
        Some(folder) => folder.display().to_string(),
        None => "memory (keep it with --data DIR)".to_owned(),
    };
    // On AWS, a sender is an address that SES has verified. Here, mails go to the mailbox, and any
    // address may send them.
    let source = Source::read(&arguments.template)?;
    let sender = format!("{}@localhost", source.stack());
    let senders = senders_without_value(&source.json()).into_iter();
    let mut parameters: BTreeMap<_, _> = senders.map(|name| (name, sender.clone())).collect();
    let folder = arguments.template.parent().unwrap_or(Path::new("")).to_owned();
    let is_built = folder.join(web_app::FILES).join("index.html").exists();
    if is_built && source.json()["Parameters"][WEB_APP].is_object() {
        parameters.insert(WEB_APP.to_owned(), "true".to_owned());
    }
    let database = match &arguments.postgres {
        Some(url) => Some(database(url.as_deref(), arguments.data.as_deref(), &source)?),
        None => None,
    };
    parameters.extend(database.iter().flat_map(|database| database.parameters.clone()));
    let search = match &arguments.search {
        Some(url) => Some(search_domain(url.as_deref(), &source).await?),
        None => None,
    };
    parameters.extend(search.iter().flat_map(|search| search.parameters.clone()));
    parameters.extend(arguments.parameter_overrides);
    let is_kept = arguments.data.is_some();
    let stack = Stack::start(Options {
        template: arguments.template,
        parameters,
        port: arguments.port,
        aws_address: arguments.aws_address,
        user: arguments.user.clone(),
        env_vars: arguments.env_vars,
        data: arguments.data,
        logs: arguments.logs,
        quiet: arguments.quiet,
        watch: arguments.watch,
        own_binaries: arguments.own_binaries,
    })
    .await?;
    let has_sources = folder.join("web/index.html").exists() && !is_built;
    print_addresses(&stack, &arguments.user, has_sources);
    if let Some(server) = database.as_ref().and_then(|database| database.server.as_ref()) {
        output::line(format_args!("  database     {}", server.url(OWN_DATABASE)));
    }
    if let Some(server) = search.as_ref().and_then(|search| search.server.as_ref()) {
        output::line(format_args!("  search       {}", server.url()));
    }
    output::line(format_args!("  data         {place}"));
    if let Some(log) = stack.log.as_ref().filter(|_| is_kept) {
        match unreadable_commits::<L>(log).await.context("the log cannot be read")? {
            (0, _) => {}
            (commits, first) => output::line(format_args!(
                "  unreadable   {commits} commits in {place}, the first one {first}. Their streams accept no commands: \
                 see docs/recipes.md for changes of events"
            )),
        }
    }
    output::line(format_args!("  not emulated {}", not_emulated(&stack.ignored)));
    if !stack.ignored_properties.is_empty() {
        output::line(format_args!("               {}", stack.ignored_properties.join(", ")));
    }
    output::line(format_args!("\nReady at {}. Stop with Ctrl-C.\n", stack.url));
    tokio::signal::ctrl_c().await?;
    Ok(())
}

/// The database of views in a server that the stack starts.
const OWN_DATABASE: &str = "postgres";

/// A database for views, and the parameters of the template that name it.
struct Database {
    parameters: Vec<(String, String)>,
    server: Option<PostgresServer>,
    /// The data of a server without `--data`.
    _folder: Option<TempDir>,
}

/// Starts a server, or uses the database of a URL.
fn database(url: Option<&str>, data: Option<&Path>, source: &Source) -> Result<Database> {
    if !source.json()["Parameters"][DATABASE_HOST].is_object() {
        bail!(
            "`--postgres`: no function of the template uses PostgreSQL; start the stack without it"
        );
    }
    let (mut server, mut folder, mut authority) = (None, None, String::new());
    let url = match url {
        Some(url) => url.to_owned(),
        None => {
            let place = match data {
                Some(data) => data.join("postgres"),
                None => folder.insert(tempfile::tempdir()?).path().to_owned(),
            };
            let started = PostgresServer::start(&place, None, &[]).context("`--postgres`")?;
            authority = std::path::absolute(started.authority())?.display().to_string();
            server.insert(started).url(OWN_DATABASE)
        }
    };
    let rest = url.strip_prefix("postgresql://").or(url.strip_prefix("postgres://"));
    let parts = rest.and_then(|rest| rest.rsplit_once('@'));
    let parts = parts.and_then(|(user, rest)| Some((user, rest.split_once('/')?)));
    let (user, (host, name)) = parts.context(
        "`--postgres`: the URL is not valid; write `postgresql://user:password@host/name`",
    )?;
    let parameters = [
        (DATABASE_HOST, host),
        ("DatabaseUser", user),
        ("DatabaseName", name),
        ("DatabaseCa", &authority),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into();
    Ok(Database { parameters, server, _folder: folder })
}

/// A domain for views in OpenSearch, and the parameters of the template that name it.
struct SearchDomain {
    parameters: [(String, String); 2],
    server: Option<SearchServer>,
}

/// Starts a server in place of OpenSearch, or uses the domain of a URL.
async fn search_domain(url: Option<&str>, source: &Source) -> Result<SearchDomain> {
    if !source.json()["Parameters"][SEARCH_ENDPOINT].is_object() {
        bail!(
            "`--search`: no function of the template uses OpenSearch; start the stack without it"
        );
    }
    let server = match url {
        Some(_) => None,
        None => Some(SearchServer::start().await.context("`--search`")?),
    };
    let url = url.or(server.as_ref().map(SearchServer::url)).unwrap_or_default();
    let parameters = [(SEARCH_ENDPOINT, url), ("SearchDomain", "local")];
    let parameters = parameters.map(|(name, value)| (name.to_owned(), value.to_owned()));
    Ok(SearchDomain { parameters, server })
}

/// Prints the routes and the addresses of a stack. `has_sources` says that the web app can be
/// built.
fn print_addresses(stack: &Stack, user: &str, has_sources: bool) {
    output::line(format_args!(""));
    for (route, function) in &stack.routes {
        output::line(format_args!("  {route:<40} {function}"));
    }
    output::line(format_args!(""));
    output::line(format_args!(
        "  signed in    {} (for another user: -H 'Authorization: Bearer NAME')",
        user
    ));
    output::line(format_args!("  contract     {0}{1}, and {0}{1}.json", stack.url, contract::PAGE));
    match &stack.web_app {
        Some([here, own]) => {
            output::line(format_args!("  web app      {here}, and {own} (another origin)"));
        }
        None if has_sources => output::line(format_args!(
            "  web app      not built: cd web && npm ci && npm run build"
        )),
        None => {}
    }
    output::line(format_args!("  AWS          {} (for AWS_ENDPOINT_URL)", stack.aws_url));
    output::line(format_args!("  mails        {}/mailbox", stack.aws_url));
}

/// The maximum number of commits in one read of the log.
const PAGE: i32 = 2_000;

/// Returns the number of commits that the aggregates cannot read, and the first of them with the
/// reason.
async fn unreadable_commits<L: Aggregates>(log: &DynamoDbStore) -> Result<(u64, String)> {
    let mut after = None;
    let mut found = 0;
    let mut first = String::new();
    loop {
        let page = log.scan(ScanPart::WHOLE, after.as_ref(), &[], PAGE).await?;
        if found == 0 && page.damaged > 0 {
            first = "is damaged (`ledger reconcile` names it)".to_owned();
        }
        found += page.damaged;
        for commit in &page.commits {
            let Some(problem) = unreadable::<L>(commit) else { continue };
            if found == 0 {
                first = format!("{} {}: {problem}", commit.stream, commit.version);
            }
            found += 1;
        }
        after = page.after;
        if after.is_none() {
            return Ok((found, first));
        }
    }
}

#[cfg(test)]
mod tests {
    use ledgerline::{EventLog, StreamId, contract, testing::tank::Tanks};

    use super::*;
    use crate::{dynamodb::tests::create_table, services::DynamoDb};

    /// A template with two roles that may send mails. No template of the libraries' tests has such
    /// a role.
    const MAILS: &str = "
Parameters:
  Sender: { Type: String, Default: '' }
  Required: { Type: String }
  Verified: { Type: String, Default: mails@example.com }
  Address: { Type: String, Default: '' }
Resources:
  Welcome:
    Type: AWS::IAM::Role
    Properties:
      Policies:
        - PolicyDocument:
            Statement:
              - { Action: ses:SendEmail, Condition: { StringEquals: { ses:FromAddress: !Ref Sender } } }
              - Action: ses:SendEmail
                Condition: { StringEquals: { SES:fromaddress: [!Ref Required, !Ref Verified, !Ref Topic] } }
  Topic: { Type: AWS::SNS::Topic, Properties: { DisplayName: !Ref Address } }
";

    #[test]
    fn a_parameter_without_a_value_in_a_condition_on_senders_is_a_sender() {
        let template = Source::parse(MAILS, Path::new("template.yaml")).unwrap().json();
        let expected = ["Required", "Sender"].map(ToOwned::to_owned);
        assert_eq!(senders_without_value(&template), expected.into());
    }

    #[tokio::test]
    async fn commits_that_the_code_cannot_read_are_counted_and_the_first_one_is_named() {
        let dynamodb = DynamoDb::start(None).await.unwrap();
        create_table(
            &dynamodb.database,
            "commits",
            &[("stream", "S", "HASH"), ("version", "N", "RANGE")],
        );
        let client = aws_sdk_dynamodb::Client::new(&dynamodb.sdk_config());
        let log = DynamoDbStore::new(client, "commits");
        assert_eq!(unreadable_commits::<Tanks>(&log).await.unwrap(), (0, String::new()));
        for version in [1, 2] {
            let commit = contract::commit(&StreamId::new("tank", "1").unwrap(), version);
            log.append(&commit, None).await.unwrap();
        }
        log.append(&contract::commit(&StreamId::new("gone", "1").unwrap(), 1), None).await.unwrap();
        let (commits, first) = unreadable_commits::<Tanks>(&log).await.unwrap();
        assert_eq!(commits, 3);
        assert!(first.starts_with("gone-1 1: no aggregate has the category gone"), "{first}");
    }
}
