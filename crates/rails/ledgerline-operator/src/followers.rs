//! What follows the log: views, subscriptions and process managers, each a function with a table.

use anyhow::{Context, Result, bail};
use ledgerline_dynamodb::{
    KeyNames,
    reconcile::{self, Follows},
};
use ledgerline_local::{
    permissions::{referred, resources},
    template::Source,
};

use crate::{
    Stack,
    deployment::{Deployment, Function},
    needs,
};

/// Something that follows the log, and what the tool has to know of its function.
#[derive(Debug, Clone)]
pub(crate) struct Follower {
    /// The function with its table, at the generation of its rows that was read when the tool began.
    pub(crate) of_log: reconcile::Follower,
    /// URL of the queue that it takes from, if there is one.
    pub(crate) queue: Option<String>,
    /// The seconds that an invocation of any function may take that reads or writes the table.
    pub(crate) timeout: u64,
    /// Whether its view can be made again from the log.
    pub(crate) can_be_made_again: bool,
}

/// What follows the log, by the needs of the functions.
pub(crate) async fn followers(deployment: &Deployment, stack: &Stack) -> Result<Vec<Follower>> {
    let source = Source::read(&stack.template)?;
    let needs = needs(&source)?;
    let template = source.json();
    let queues = deployment.queues();
    let mut followers = Vec::new();
    for (id, function) in resources(&template, &["AWS::Serverless::Function"]) {
        let binary = function["Metadata"]["BuildProperties"]["Binary"].as_str().unwrap_or_default();
        let Some(needs) = needs.get(binary) else { continue };
        let Some(follower) = needs.follower() else { continue };
        let Ok(Function { name, variables, .. }) = deployment.function(id) else {
            eprintln!("{id} is not deployed, and is not looked at");
            continue;
        };
        let table = variables.get(follower.variable);
        let table = table.with_context(|| format!("{name} has no variable {}", follower.variable))?;
        let (name_of_table, table) = (table, deployment.table(table));
        table.recent_generations(KeyNames { partition: follower.partition, sort: follower.sort }).await?;
        let events =
            function["Properties"]["Events"].as_object().into_iter().flat_map(|events| events.values());
        let queue = events
            .filter(|event| event["Type"] == "SQS")
            .find_map(|event| referred(&event["Properties"]["Queue"]));
        let of_log = reconcile::Follower {
            id: id.to_owned(),
            kind: follower.kind,
            of: follower.of.iter().map(|of| (*of).to_owned()).collect(),
            table: table.at_what_is_read(),
            partition: follower.partition.to_owned(),
            sort: follower.sort.map(ToOwned::to_owned),
        };
        followers.push(Follower {
            queue: queue.and_then(|queue| queues.get(queue)).cloned(),
            timeout: deployment.longest(name_of_table, &template),
            can_be_made_again: follower.kind == Follows::Order || needs.scans_the_log(),
            of_log,
        });
    }
    Ok(followers)
}

/// The one with this name: a logical id, or the beginning of one.
pub(crate) fn named<'f>(followers: &'f [Follower], name: &str) -> Result<&'f Follower> {
    let begins: Vec<_> = followers.iter().filter(|follower| follower.of_log.id.starts_with(name)).collect();
    let exact = begins.iter().find(|follower| follower.of_log.id == name).copied();
    match (exact, begins.as_slice()) {
        (Some(one), _) | (None, &[one]) => Ok(one),
        (None, _) => {
            let known: Vec<_> = followers.iter().map(|follower| follower.of_log.id.as_str()).collect();
            bail!("{name} is no name, or no beginning, of exactly one of these: {}", known.join(", "))
        }
    }
}
