//! The examination of the deployed stack: changes by hand that CloudFormation does not see as
//! drift, and commits and manifests that do not fit this workspace.

mod event_rules;
mod targets;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use aws_sdk_cloudformation::types::{StackDriftDetectionStatus, StackResourceDriftStatus};
use backon::{ConstantBuilder, Retryable};
use clap::Args;
use jiff::{SignedDuration, Timestamp};
use ledgerline::{
    Aggregate, Aggregates, EventLog, EventTypes, StoreError, StreamId, Visitor,
    all::{newest_segment, segments, void_entries},
    manifest::{Manifest, Manifests},
    shapes::unreadable,
};
use ledgerline_dynamodb::{Phase, Standby};
use ledgerline_sam::lookup::resources;
use serde_json::{Value, json};

use crate::{
    Output, Stack, concurrency, deployed,
    deployment::{Deployment, Function, LIVE},
    price::STORAGE,
    subscribers::{Subscriber, subscribers},
};

/// The most commits that doctor reads, the newest ones of `$all`, to check that this code
/// understands them.
const NEWEST: usize = 1_000;
/// The most segments of `$all` that doctor reads to find them, the newest ones. A segment has one
/// entry at least.
const SEGMENTS: u64 = 200;
/// The number of commits that are read at once.
const AT_ONCE: usize = 100;
/// The age from which a generation that is not read is a finding.
const STANDBY_AGE: SignedDuration = SignedDuration::from_hours(24);

/// The options of `ledger doctor`.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Let CloudFormation compare every resource, such as roles and alarms, with its deployed form.
    /// This takes minutes, and needs the right to read all of them, such as ReadOnlyAccess.
    #[arg(long)]
    drift: bool,
}

/// The faults, and the number of examined things of each kind.
#[derive(Debug, Default)]
struct Findings {
    examined: Vec<(&'static str, usize)>,
    wrong: Vec<Value>,
}

impl Findings {
    fn add(&mut self, of: &str, name: &str, is: impl Into<String>) {
        self.wrong.push(json!({ "of": of, "name": name, "wrong": is.into() }));
    }
}

/// Examines the stack. Returns whether it finds no fault.
pub(crate) async fn run<L: Aggregates>(
    deployment: &Deployment,
    stack: &Stack,
    options: &DoctorArgs,
    out: Output,
) -> Result<bool> {
    let busy = out.busy("examining the deployed stack");
    let mut findings = Findings::default();
    let template = deployed::template(deployment).await?;
    let manifests = deployed::parse_manifests(&template)?;
    for function in deployed::differing_functions(&manifests, &stack.template)? {
        findings.add("manifest", &function, "it is deployed differently");
    }
    check_functions(deployment, &template, &manifests, &mut findings).await?;
    event_rules::check_bus(deployment, &mut findings).await;
    if !deployment.is_local {
        event_rules::check_rules(deployment, &mut findings).await;
    }
    check_views(deployment, stack, &mut findings).await?;
    if options.drift {
        detect_drift(deployment, &mut findings).await?;
    }
    let unseen = check_newest_commits::<L>(deployment, &mut findings).await?;
    drop(busy);
    let examined: Vec<_> = findings
        .examined
        .iter()
        .map(|(what, number)| json!({ "examined": what, "number": number }))
        .collect();
    out.rows(&["examined", "number"], &examined);
    if !unseen.is_empty() {
        let unseen: Vec<_> = unseen.into_iter().collect();
        out.note(&format!(
            "\nevent types that doctor did not check, because none of the newest commits has them: {}",
            unseen.join(", ")
        ));
    }
    out.note("");
    if findings.wrong.is_empty() {
        out.note(match options.drift {
            true => "doctor found no fault",
            false => {
                "doctor found no fault; --drift also finds resources that were changed by hand"
            }
        });
    } else {
        out.rows(&["of", "name", "wrong"], &findings.wrong);
    }
    Ok(findings.wrong.is_empty())
}

// --- Functions -----------------------------------------------------------------------------------

/// Compares the variables of the functions with their manifests. On AWS, it also checks their
/// aliases, reservations and event sources.
async fn check_functions(
    deployment: &Deployment,
    template: &Value,
    manifests: &Manifests,
    findings: &mut Findings,
) -> Result<()> {
    let (mut examined, mut enabled) = (0, 0);
    for (id, function) in resources(template, &["AWS::Serverless::Function"]) {
        let Ok(Function { name, variables, is_newest }) = deployment.function(id) else {
            // A resource with a condition need not exist.
            if function["Condition"].is_null() {
                findings.add("function", id, "it is not deployed");
            }
            continue;
        };
        examined += 1;
        let binary = function["Metadata"]["BuildProperties"]["Binary"].as_str().unwrap_or_default();
        if let Some(wrong) = missing_variables(manifests.get(binary), variables) {
            findings.add("function", id, wrong);
        }
        match is_newest {
            Ok(true) => {}
            Ok(false) => findings.add("function", id, "the live version has other variables than the last deployment: run `ledger release promote` or `ledger release rollback`, or leave it"),
            Err(error) => findings.add("function", id, format!("the alias {LIVE}, which receives the events: {error}")),
        }
        // The local stack reads the sources from the template, and limits no function.
        if !deployment.is_local {
            match concurrency::reservation(deployment, id).await {
                Ok(Some(0)) => findings.add(
                    "function",
                    id,
                    format!(
                        "it is stopped: run `ledger concurrency {id} --release --write --why …`"
                    ),
                ),
                Ok(Some(_) | None) => {}
                Err(error) => findings.add("function", id, format!("{error:#}")),
            }
            enabled += check_mappings(deployment, id, name, findings).await?;
        }
    }
    findings.examined.push(("functions", examined));
    if !deployment.is_local {
        findings.examined.push(("event source mappings", enabled));
    }
    Ok(())
}

/// Checks that the event source mappings of a function are enabled. Returns their number.
async fn check_mappings(
    deployment: &Deployment,
    id: &str,
    name: &str,
    findings: &mut Findings,
) -> Result<usize> {
    let list =
        deployment.lambda.list_event_source_mappings().function_name(format!("{name}:{LIVE}"));
    let mut items = list.into_paginator().items().send();
    let mut count = 0;
    while let Some(mapping) = items.next().await {
        let mapping = mapping.with_context(|| format!("the sources of {id}"))?;
        count += 1;
        let state = mapping.state.as_deref().unwrap_or_default();
        if !["Enabled", "Enabling", "Updating", "Creating"].contains(&state) {
            findings.add("function", id, format!("a source of its events is {state}"));
        }
    }
    Ok(count)
}

/// Finds generations that are not read, and that an operator may have forgotten.
async fn check_views(
    deployment: &Deployment,
    stack: &Stack,
    findings: &mut Findings,
) -> Result<()> {
    let subscribers = subscribers(deployment, stack).await?;
    for Subscriber { compared, .. } in &subscribers {
        let generations = compared.table.generations().await?;
        let Some(Standby { number, since, phase, .. }) =
            generations.standby.filter(|standby| standby.since < Timestamp::now() - STANDBY_AGE)
        else {
            continue;
        };
        let describe = deployment.dynamodb.describe_table().table_name(compared.table.name());
        let table = describe.send().await?.table;
        let bytes = table.and_then(|table| table.table_size_bytes).unwrap_or(0);
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let dollars = bytes as f64 / 2e9 * STORAGE;
        let (writes, advice) = match phase {
            Phase::Dropping => ("", "finish `ledger rebuild drop`"),
            Phase::Building | Phase::Kept => {
                ("it doubles the writes, and ", "run `ledger rebuild drop`, or finish its rebuild")
            }
        };
        let cost = format!("{writes}its rows cost {dollars:.2} US$ a month");
        let wrong = format!("generation {number} is not read since {since}: {cost}; {advice}");
        findings.add("view", &compared.id, wrong);
    }
    findings.examined.push(("views", subscribers.len()));
    Ok(())
}

// --- Rules and drift -----------------------------------------------------------------------------

/// Returns the problem of a function whose code needs variables that were taken away.
fn missing_variables(
    manifest: Option<&Manifest>,
    variables: &BTreeMap<String, String>,
) -> Option<String> {
    let declared = manifest.into_iter().flat_map(|manifest| &manifest.variables);
    let missing = declared.map(|name| &**name).filter(|name| !variables.contains_key(*name));
    let missing = missing.collect::<Vec<_>>().join(", ");
    (!missing.is_empty()).then(|| format!("it lacks the variables {missing}, which its code needs"))
}

/// Makes CloudFormation compare the resources with their deployed form, and waits for the result.
async fn detect_drift(deployment: &Deployment, findings: &mut Findings) -> Result<()> {
    let client = &deployment.cloudformation;
    let begun = client.detect_stack_drift().stack_name(&deployment.stack).send().await;
    let id = begun
        .context("CloudFormation cannot begin the drift detection")?
        .stack_drift_detection_id
        .unwrap_or_default();
    // Only a comparison in progress is an error that is retried. Any other status, and a refused
    // call, end the retries.
    let ask = async || {
        let status = client
            .describe_stack_drift_detection_status()
            .stack_drift_detection_id(&id)
            .send()
            .await;
        match status {
            Ok(status)
                if status.detection_status()
                    == Some(&StackDriftDetectionStatus::DetectionInProgress) =>
            {
                bail!("CloudFormation still detects drift: run the command again later")
            }
            other => Ok(other),
        }
    };
    let often = ConstantBuilder::default().with_delay(Duration::from_secs(2)).with_max_times(300);
    let status = ask.retry(often).sleep(tokio::time::sleep).await?;
    // CloudFormation may fail to compare some resources. The results for the others are reported.
    if let Some(reason) = status
        .context("the progress of the drift detection cannot be read")?
        .detection_status_reason
    {
        findings.add("drift", &deployment.stack, reason);
    }
    let changed = [StackResourceDriftStatus::Modified, StackResourceDriftStatus::Deleted];
    let mut after = None;
    loop {
        let list = client.describe_stack_resource_drifts().stack_name(&deployment.stack);
        let list = list
            .set_stack_resource_drift_status_filters(Some(changed.to_vec()))
            .set_next_token(after);
        let page = list.send().await.context("the result of the drift detection cannot be read")?;
        for drift in page.stack_resource_drifts() {
            let id = drift.logical_resource_id().unwrap_or_default();
            let places: Vec<_> =
                drift.property_differences().iter().filter_map(|one| one.property_path()).collect();
            let is = drift
                .stack_resource_drift_status()
                .map(|status| status.as_str())
                .unwrap_or_default();
            findings.add("drift", id, format!("{is} {}", places.join(" ")));
        }
        after = page.next_token;
        if after.is_none() {
            return Ok(());
        }
    }
}

// --- The log -------------------------------------------------------------------------------------

/// Checks that this code reads the newest commits, which newer code may have written. Returns the
/// event types that none of them has, each with its category.
async fn check_newest_commits<L: Aggregates>(
    deployment: &Deployment,
    findings: &mut Findings,
) -> Result<BTreeSet<String>> {
    let mut unseen = event_types::<L>();
    let Some(sequence) = deployment.order() else { return Ok(unseen) };
    let log = deployment.log()?;
    let mut examined = 0;
    let newest = newest_segment(&sequence).await?.map_or(0, |newest| newest.number);
    let mut entries = Vec::new();
    let mut after = newest.saturating_sub(SEGMENTS);
    while after < newest {
        let (page, _) = segments(&sequence, after).await?;
        after = page.last().map_or(newest, |last| last.number);
        entries.extend(page.into_iter().flat_map(|segment| segment.entries));
    }
    let voids = void_entries(&sequence).await?;
    // A version with a void entry may have a second entry.
    let mut names = BTreeSet::new();
    let entries: Vec<_> =
        entries.iter().rev().filter(|entry| names.insert(*entry)).take(NEWEST).collect();
    for part in entries.chunks(AT_ONCE) {
        let names: Vec<(&StreamId, u64)> =
            part.iter().map(|entry| (&entry.stream, entry.version)).collect();
        for (entry, commit) in part.iter().zip(log.get_all(&names).await?) {
            examined += 1;
            let name = format!("{} {}", entry.stream, entry.version);
            match commit {
                Ok(Some(commit)) => {
                    let category = commit.stream.category();
                    for event in &commit.events {
                        unseen.remove(&format!("{category} {}", event.event_type));
                    }
                    if let Some(problem) = unreadable::<L>(&commit) {
                        findings.add("log", &name, problem);
                    }
                }
                Ok(None) if voids.contains(*entry) => {}
                Ok(None) => findings.add("log", &name, "it is missing, and $all names it"),
                Err(StoreError::Corrupt { reason, .. }) => findings.add("log", &name, reason),
                Err(error) => return Err(error.into()),
            }
        }
    }
    findings.examined.push(("newest commits", examined));
    Ok(unseen)
}

/// Returns the event types of these aggregates, each with its category.
fn event_types<L: Aggregates>() -> BTreeSet<String> {
    struct Types(BTreeSet<String>);
    impl Visitor for Types {
        fn visit<A: Aggregate>(&mut self) {
            let names = A::Event::TYPES.iter().flat_map(|known| known.names());
            self.0.extend(names.map(|name| format!("{} {name}", A::CATEGORY)));
        }
    }
    let mut types = Types(BTreeSet::new());
    L::visit(&mut types);
    types.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_without_a_variable_of_its_manifest_is_found() {
        let manifest =
            json!({ "source": "schedule", "variables": ["COMMITS_TABLE", "LEVELS_TABLE"] });
        let manifest: Manifest = serde_json::from_value(manifest).unwrap();
        let deployed = |names: &[&str]| {
            let names = names.iter().map(|name| ((*name).to_owned(), "x".to_owned()));
            missing_variables(Some(&manifest), &names.collect())
        };
        assert_eq!(deployed(&["COMMITS_TABLE", "LEVELS_TABLE", "OTHER"]), None);
        let wrong = deployed(&["COMMITS_TABLE"]).unwrap();
        assert_eq!(wrong, "it lacks the variables LEVELS_TABLE, which its code needs");
    }
}
