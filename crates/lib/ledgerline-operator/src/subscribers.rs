//! The subscribers of a stack: views, subscriptions and process managers, each a function with a
//! table.

use anyhow::{Context, Result, bail};
use ledgerline::manifest::{Action, SubscriberKind};
use ledgerline_dynamodb::{ViewTable, reconcile};
use ledgerline_sam::lookup::{logical_id, resources};

use crate::{
    Stack,
    deployed::Deployed,
    deployment::{Deployment, Function},
};

/// A subscriber, and the properties of its function that the tool needs.
#[derive(Debug, Clone)]
pub(crate) struct Subscriber {
    /// The function with its table, at the generations of the time when the tool began.
    pub(crate) compared: reconcile::Subscriber,
    /// The URL of its queue, if it has one.
    pub(crate) queue: Option<String>,
    /// The longest timeout, in seconds, of all functions that use the table.
    pub(crate) timeout: u64,
    /// Whether its view can be rebuilt from the log.
    pub(crate) is_rebuildable: bool,
    /// Whether the subscriber only inserts rows, each from one commit.
    pub(crate) inserts: bool,
}

/// Returns the subscribers of the stack, by the manifests of its functions.
pub(crate) async fn subscribers(deployment: &Deployment, stack: &Stack) -> Result<Vec<Subscriber>> {
    let Deployed { template, manifests } = Deployed::read(deployment, stack).await?;
    let queues = deployment.queues();
    let mut subscribers = Vec::new();
    for (id, function) in resources(&template, &["AWS::Serverless::Function"]) {
        let binary = function["Metadata"]["BuildProperties"]["Binary"].as_str().unwrap_or_default();
        let Some(manifest) = manifests.get(binary) else { continue };
        let Some(subscriber) = &manifest.subscriber else { continue };
        let keys = manifest.table_of(&subscriber.table);
        let keys = keys.with_context(|| {
            format!("the manifest of `{id}` has no table `{}`", subscriber.table)
        })?;
        let Ok(Function { name, variables, .. }) = deployment.function(id) else {
            // With its condition, a function need not be there.
            if function["Condition"].is_null() {
                eprintln!("`{id}` is not deployed; the tool leaves it out");
            }
            continue;
        };
        let table = variables.get(&*subscriber.table);
        let table =
            table.with_context(|| format!("`{name}` has no variable `{}`", subscriber.table))?;
        let name_of_table = table;
        let table = match &subscriber.view {
            Some(view) => ViewTable::from_view(deployment.dynamodb.clone(), table, view)
                .with_positions(deployment.read_positions(&deployment.name(id)?)),
            None => deployment.table(table, keys),
        };
        let events = function["Properties"]["Events"]
            .as_object()
            .into_iter()
            .flat_map(|events| events.values());
        let queue = events
            .filter(|event| event["Type"] == "SQS")
            .find_map(|event| logical_id(&event["Properties"]["Queue"]));
        let compared = reconcile::Subscriber {
            id: id.to_owned(),
            kind: subscriber.kind,
            of: manifest.categories().into_iter().map(ToOwned::to_owned).collect(),
            table,
            other: None,
        };
        subscribers.push(Subscriber {
            queue: queue.and_then(|queue| queues.get(queue)).cloned(),
            timeout: deployment.longest_timeout(name_of_table, &template),
            is_rebuildable: subscriber.kind == SubscriberKind::Subscription
                || manifest.takes(Action::Scan, "COMMITS_TABLE"),
            inserts: subscriber.kind == SubscriberKind::LogProjector
                && manifest.takes(Action::BatchWriteItem, &subscriber.table),
            compared: compared.at_generations().await?,
        });
    }
    Ok(subscribers)
}

/// Returns the subscriber with this logical id, or the only one whose id begins with this name.
pub(crate) fn find<'f>(subscribers: &'f [Subscriber], name: &str) -> Result<&'f Subscriber> {
    let begins: Vec<_> =
        subscribers.iter().filter(|subscriber| subscriber.compared.id.starts_with(name)).collect();
    let exact = begins.iter().find(|subscriber| subscriber.compared.id == name).copied();
    match (exact, begins.as_slice()) {
        (Some(one), _) | (None, &[one]) => Ok(one),
        (None, _) => {
            let known: Vec<_> =
                subscribers.iter().map(|subscriber| subscriber.compared.id.as_str()).collect();
            bail!("`{name}` does not identify one function; choose one of: {}", known.join(", "))
        }
    }
}
