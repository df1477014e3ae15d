//! What follows the log: views, subscriptions and process managers, each a function with a table.

use anyhow::{Context, Result, bail};
use ledgerline::{Consistency, EventStore, LogTable, Range, StateTable, StreamId};
use ledgerline_dynamodb::{DynamoDbStore, Head, KeyNames, ReadTable};
use ledgerline_local::{
    permissions::{referred, resources},
    template::Source,
    wiring::{Follows, needs_of},
};
use serde_json::Value;

use crate::{Stack, deployment::Deployment};

/// Something that follows the log: a function with its table.
#[derive(Debug, Clone)]
pub(crate) struct Follower {
    /// Logical id.
    pub(crate) id: String,
    pub(crate) kind: Follows,
    /// The categories whose commits it takes.
    pub(crate) of: Vec<String>,
    /// Its table, with the generation of its rows that was read when the tool began.
    pub(crate) table: ReadTable,
    /// URL of the queue that it takes from, if there is one.
    pub(crate) queue: Option<String>,
    /// The seconds that an invocation of any function may take that reads or writes the table.
    pub(crate) timeout: u64,
    /// Whether its view can be made again from the log.
    pub(crate) can_be_made_again: bool,
    partition: &'static str,
    sort: Option<&'static str>,
}

impl Follower {
    pub(crate) fn keys(&self) -> KeyNames<'static> {
        KeyNames { partition: self.partition, sort: self.sort }
    }

    pub(crate) fn takes(&self, stream: &StreamId) -> bool {
        self.of.iter().any(|of| of == stream.category())
    }

    /// The last version of a stream that this table of it has.
    pub(crate) async fn reached(&self, table: &ReadTable, stream: &StreamId) -> Result<u64> {
        let variable = "";
        Ok(match (self.kind, self.sort) {
            (Follows::States, _) | (_, None) => {
                let keys = StateTable { variable, key: self.partition, indexes: &[] };
                table.shown::<Value>(&keys, stream.id()).await?.0
            }
            (Follows::Log | Follows::Order | Follows::ToAct, Some(sort)) => {
                let keys = LogTable { variable, partition: self.partition, sort };
                table.position(&keys, stream).await?
            }
        })
    }
}

/// What follows the log, by the needs of the functions.
pub(crate) async fn followers(deployment: &Deployment, stack: &Stack) -> Result<Vec<Follower>> {
    let source = Source::read(&stack.template)?;
    let root = cargo_metadata::MetadataCommand::new().no_deps().exec()?.workspace_root;
    let needs = needs_of(&source, root.as_std_path())?;
    let template = source.json();
    let queues = deployment.queues().await?;
    let mut followers = Vec::new();
    for (id, function) in resources(&template, &["AWS::Serverless::Function"]) {
        let binary = function["Metadata"]["BuildProperties"]["Binary"].as_str().unwrap_or_default();
        let Some(needs) = needs.get(binary) else { continue };
        let Some(follower) = needs.follower() else { continue };
        let Some((name, environment)) = deployment.function(id) else {
            eprintln!("{id} is not deployed, and is not looked at");
            continue;
        };
        let table = environment.get(follower.variable);
        let table = table.with_context(|| format!("{name} has no variable {}", follower.variable))?;
        // The names of keys live as long as the program: there are a few.
        let leak = |text: &str| -> &'static str { Box::leak(text.to_owned().into_boxed_str()) };
        let (partition, sort) = (leak(follower.partition), follower.sort.map(leak));
        let (name_of_table, table) = (table, deployment.table(table));
        table.recent_generations(KeyNames { partition, sort }).await?;
        let events =
            function["Properties"]["Events"].as_object().into_iter().flat_map(|events| events.values());
        let queue = events
            .filter(|event| event["Type"] == "SQS")
            .find_map(|event| referred(&event["Properties"]["Queue"]));
        followers.push(Follower {
            id: id.to_owned(),
            kind: follower.kind,
            of: follower.of.iter().map(|of| (*of).to_owned()).collect(),
            table: table.at_what_is_read(),
            queue: queue.and_then(|queue| queues.get(queue)).cloned(),
            timeout: deployment.longest(name_of_table, &template),
            can_be_made_again: follower.kind == Follows::Order || needs.scans_the_log(),
            partition,
            sort,
        });
    }
    Ok(followers)
}

/// The one with this name: a logical id, or the beginning of one.
pub(crate) fn named<'f>(followers: &'f [Follower], name: &str) -> Result<&'f Follower> {
    let begins: Vec<_> = followers.iter().filter(|follower| follower.id.starts_with(name)).collect();
    let exact = begins.iter().find(|follower| follower.id == name).copied();
    match (exact, begins.as_slice()) {
        (Some(one), _) | (None, &[one]) => Ok(one),
        (None, _) => {
            let known: Vec<_> = followers.iter().map(|follower| follower.id.as_str()).collect();
            bail!("{name} is no name, or no beginning, of exactly one of these: {}", known.join(", "))
        }
    }
}

/// The newest commit of a stream, read strongly.
pub(crate) async fn newest(log: &DynamoDbStore, stream: StreamId) -> Result<(StreamId, Head)> {
    let newest = Range { after: 0, up_to: u64::MAX, limit: Some(1) };
    let page = log.read(&stream, newest, Consistency::Strong).await?;
    let head = page.commits.first().map_or_else(Head::default, |commit| Head {
        version: commit.version,
        commits: commit.version,
        at: Some(commit.at),
    });
    Ok((stream, head))
}
