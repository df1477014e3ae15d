//! Commits of the log: those of one stream, of all streams as they are appended, or of one request.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context, Result, bail};
use ledgerline::{
    Aggregate, Aggregates, Commit, EventLog, STATE_REPUBLISHED, StoreError, StreamId, Visitor,
    all::{Cursor, Filter, Subscription},
    decode, encode_state, fold,
    view_store::ViewError,
};
use serde_json::{Value, json};

use crate::{
    Output, Stack,
    deployment::Deployment,
    subscribers::{Subscriber, subscribers},
};

/// The printed fields of a commit.
const FIELDS: [&str; 6] = ["stream", "version", "at", "events", "correlation", "data"];

/// Returns the row of a commit. It contains payloads only if the operator wants them (rule 14).
fn row(commit: &Commit, payloads: bool) -> Value {
    let mut types: Vec<_> = commit.events.iter().map(|event| event.event_type.as_str()).collect();
    if types.is_empty() {
        types.push(STATE_REPUBLISHED);
    }
    let mut row = json!({
        "stream": commit.stream, "version": commit.version, "at": commit.at, "events": types.join(", "),
        "correlation": commit.meta.correlation_id, "causation": commit.meta.causation_id,
    });
    if payloads {
        let read = |data: &String| serde_json::from_str::<Value>(data).unwrap_or_default();
        row["data"] = commit.events.iter().map(|event| read(&event.data)).collect();
    }
    row
}

/// Prints the streams for which `is_wanted` is true, by their names and versions.
pub(crate) async fn list_streams(
    deployment: &Deployment,
    is_wanted: impl Fn(&StreamId, u64) -> bool,
    out: Output,
) -> Result<()> {
    let busy = out.busy("reading the keys of the whole log");
    let heads = deployment.log()?.heads(deployment.parts()).await?;
    drop(busy);
    let rows: Vec<_> = heads
        .into_iter()
        .filter(|(stream, head)| is_wanted(stream, head.version))
        .map(|(stream, head)| json!({ "stream": stream, "version": head.version, "at": head.at }))
        .collect();
    out.rows(&["stream", "version", "at"], &rows);
    Ok(())
}

/// Prints a stream up to a version, and the state at that version.
pub(crate) async fn show<L: Aggregates>(
    deployment: &Deployment,
    stream: &StreamId,
    at: Option<u64>,
    payloads: bool,
    out: Output,
) -> Result<()> {
    let log = deployment.log()?;
    let (mut commits, up_to) = (Vec::<Commit>::new(), at.unwrap_or(u64::MAX));
    loop {
        let page = log
            .read_forwards(stream, commits.last().map_or(0, |commit| commit.version), up_to)
            .await?;
        commits.extend(page.commits);
        if page.complete {
            break;
        }
    }
    let last = commits.last().map_or(0, |commit| commit.version);
    if last == 0 {
        bail!("there is no stream `{stream}`");
    }
    if at.is_some_and(|at| at > last) {
        bail!("`{stream}` has the versions 1 to {last}");
    }
    let mut state = StateFold { commits: &commits, category: stream.category(), state: None };
    L::visit(&mut state);
    let rows: Vec<_> = commits.iter().map(|commit| row(commit, payloads)).collect();
    let fields = if payloads { &FIELDS[1..] } else { &FIELDS[1..5] };
    out.rows(fields, &rows);
    // The fold of a stream with a hole is not the stream's state, so no state is printed.
    if let Some(version) = hole(&commits) {
        bail!(
            "version {version} is missing: the log has a hole, and no state is shown (docs/runbook.md)"
        );
    }
    let state = state.state.with_context(|| {
        format!("no aggregate of this workspace has the category `{}`", stream.category())
    })??;
    if payloads {
        out.rows(&["version", "state"], &[json!({ "version": last, "state": state })]);
    } else {
        out.note("\n--payloads also prints the payloads of the events, and the state after them");
    }
    Ok(())
}

/// Returns the first version from 1 on that these commits of a stream lack.
fn hole(commits: &[Commit]) -> Option<u64> {
    (1..)
        .zip(commits)
        .find(|(version, commit)| commit.version != *version)
        .map(|(version, _)| version)
}

/// Folds commits to the state of the aggregate with this category.
struct StateFold<'a> {
    commits: &'a [Commit],
    category: &'a str,
    state: Option<Result<Value>>,
}

impl Visitor for StateFold<'_> {
    fn visit<A: Aggregate>(&mut self) {
        if A::CATEGORY == self.category {
            let events = self.commits.iter().flat_map(|commit| &commit.events).map(decode::<A>);
            self.state = Some(events.collect::<Result<Vec<_>, _>>().map_err(Into::into).and_then(
                |events| {
                    let state = fold::<A>(A::State::default(), &events);
                    Ok(serde_json::from_str(&encode_state::<A>(&state)?.data)?)
                },
            ));
        }
    }
}

/// Prints commits as they are appended.
pub(crate) async fn tail(
    deployment: &Deployment,
    category: Option<String>,
    from: &str,
    payloads: bool,
    once: bool,
    out: Output,
) -> Result<()> {
    let sequence = deployment
        .order()
        .context("the stack has no `$all`: run `cargo xtask new subscription`")?;
    let filter = Filter { categories: category.into_iter().collect(), events: BTreeSet::new() };
    let subscription = Subscription { sequence, log: deployment.log()?, filter, limit: 100 };
    let mut cursor = match from {
        "now" => subscription.cursor_at_end().await?,
        "beginning" => Cursor::beginning(),
        time => {
            subscription
                .cursor_at(time.parse().context(
                    "choose a start: beginning, now, or a time such as 2026-11-24T09:30:00Z",
                )?)
                .await?
        }
    };
    let ends = tokio::signal::ctrl_c();
    tokio::pin!(ends);
    loop {
        let page = tokio::select! {
            page = subscription.read_page(cursor) => page?,
            _ = &mut ends => return Ok(()),
        };
        for delivered in page.delivered {
            let row = match delivered.commit {
                Ok(commit) => row(&commit, payloads),
                Err(reason) => {
                    let stream = delivered.entry.stream;
                    let version = delivered.entry.version;
                    json!({ "stream": stream, "version": version, "events": format!("cannot be read: {reason}"), "unreadable": reason })
                }
            };
            out.line(&line(&row, out));
        }
        cursor = page.cursor;
        match (page.complete, once) {
            (false, _) => {}
            (true, true) => return Ok(()),
            (true, false) => tokio::select! {
                () = tokio::time::sleep(Duration::from_millis(500)) => {}
                _ = &mut ends => return Ok(()),
            },
        }
    }
}

fn line(row: &Value, out: Output) -> String {
    if out.json {
        return row.to_string();
    }
    let text = |name: &str| row[name].as_str().unwrap_or_default().to_owned();
    let data = if row["data"].is_null() { String::new() } else { format!("  {}", row["data"]) };
    format!("{}  {} v{}  {}{data}", text("at"), text("stream"), row["version"], text("events"))
}

/// Prints every commit with this correlation id, and the subscribers that have applied it.
pub(crate) async fn trace(
    deployment: &Deployment,
    stack: &Stack,
    id: &str,
    payloads: bool,
    out: Output,
) -> Result<()> {
    let log = deployment.log()?;
    let busy = out.busy("looking for the commits in the whole log");
    let (mut commits, mut rows) = (Vec::new(), Vec::new());
    for (stream, version) in log.find_correlated(id).await? {
        match log.get(&stream, version).await {
            Ok(commit) => commits.extend(commit),
            // A damaged commit does not hide the others (rule 11).
            Err(StoreError::Corrupt { reason, .. }) => {
                rows.push(json!({ "stream": stream, "version": version, "events": format!("cannot be read: {reason}") }));
            }
            Err(error) => return Err(error.into()),
        }
    }
    if commits.is_empty() && rows.is_empty() {
        bail!("no commit has the correlation id {id}");
    }
    commits.sort_by_key(|commit| commit.at);
    let subscribers = subscribers(deployment, stack).await?;
    for commit in &commits {
        // The subscribers of the stream that have applied the commit, and those that have not.
        let (mut there, mut not_yet) = (Vec::new(), Vec::new());
        for Subscriber { compared, .. } in
            subscribers.iter().filter(|subscriber| subscriber.compared.takes(&commit.stream))
        {
            let is_there = match compared.table.applied_version(&commit.stream).await {
                Ok(reached) => reached >= commit.version,
                // A subscriber that cannot read its own position has not applied the commit.
                Err(ViewError::Row(_)) => false,
                Err(error) => return Err(error.into()),
            };
            if is_there { &mut there } else { &mut not_yet }.push(compared.id.as_str());
        }
        let mut row = row(commit, payloads);
        row["in"] = there.join(" ").into();
        row["notYetIn"] = not_yet.join(" ").into();
        rows.push(row);
    }
    drop(busy);
    let fields = ["at", "stream", "version", "events", "causation", "in", "notYetIn", "data"];
    out.rows(if payloads { &fields } else { &fields[..7] }, &rows);
    Ok(())
}

#[cfg(test)]
mod tests {
    use ledgerline::contract::commit;

    use super::*;

    #[test]
    fn the_first_version_that_is_missing_is_the_hole() -> Result<()> {
        let stream = StreamId::new("tank", "north")?;
        for (versions, missing) in
            [(&[1, 2, 3][..], None), (&[2, 3], Some(1)), (&[1, 3, 5], Some(2)), (&[], None)]
        {
            let commits: Vec<_> =
                versions.iter().map(|version| commit(&stream, *version)).collect();
            assert_eq!(hole(&commits), missing, "{versions:?}");
        }
        Ok(())
    }
}
