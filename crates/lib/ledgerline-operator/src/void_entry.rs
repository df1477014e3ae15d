//! The correction of `$all`: an operator makes an entry void if the log lacks its commit.

use anyhow::{Context, Result, bail};
use aws_sdk_lambda::primitives::Blob;
use clap::{Args, Subcommand};
use ledgerline::{
    EventLog, StreamId,
    all::{Entry, NamedEntry, segments, void_entries},
};
use serde_json::{Value, json};

use crate::{
    Output, WriteArgs,
    deployment::{Deployment, SEQUENCER},
    records::{self, Record},
};

/// The subcommands of `ledger order`.
#[derive(Debug, Subcommand)]
pub(crate) enum Order {
    /// Make an entry of `$all` void if the log does not have its commit.
    ///
    /// Subscriptions and `GET /events` ignore a void entry. Deploy all readers of `$all` first: a
    /// reader of an older version fails at the void entry. Without --write, print whether the log
    /// has the commit.
    Void(VoidArgs),
}

/// The arguments of `ledger order void`.
#[derive(Debug, Args)]
pub(crate) struct VoidArgs {
    /// The stream that the entry names.
    stream: String,
    /// The version that the entry names.
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    version: u64,
    #[command(flatten)]
    write_args: WriteArgs,
}

/// Makes an entry void; without `--write`, prints whether it is void. Returns `false` if the
/// operator declines.
pub(crate) async fn run(deployment: &Deployment, order: &Order, out: Output) -> Result<bool> {
    let Order::Void(VoidArgs { stream, version, write_args }) = order;
    let stream = StreamId::try_from(stream.clone())
        .with_context(|| format!("`{stream}` is not a stream name (`category-id`)"))?;
    let entry = Entry { stream, version: *version };
    let sequence = deployment
        .order()
        .context("the stack has no `$all`: run `cargo xtask new subscription`")?;
    let name = format!("{} {version}", entry.stream);
    let is_void = void_entries(&sequence).await?.contains(&entry);
    if !is_void && deployment.log()?.has(&entry.stream, *version).await? {
        bail!("the log has `{name}`: its entry is valid, and stays");
    }
    let Some(segment) = find_segment(&sequence, &entry).await? else {
        bail!("`$all` has no entry `{name}`: check the stream and the version");
    };
    let show = |is| {
        let row = json!({ "stream": entry.stream, "version": version, "is": is });
        out.rows(&["stream", "version", "is"], &[row]);
    };
    if !write_args.write {
        show(if is_void { "void already" } else { "not in the log: --write makes its entry void" });
        return Ok(true);
    }
    if !write_args.confirm(&format!("make the entry `{name}` of `$all` void, permanently?"))? {
        return Ok(false);
    }
    // `$all` stores no reason. The record stores it, so the record is written first.
    let table = records::table(deployment)?;
    let what = format!("void {name}");
    let why = write_args.why();
    records::store(deployment, table, Record { kind: "order", what, why, detail: json!(entry) })
        .await?;
    // Invoke the sequencer even if the entry is void: an earlier call may have been interrupted,
    // and this call finishes it.
    let payload =
        Blob::new(json!({ "void": NamedEntry { segment, entry: entry.clone() } }).to_string());
    let call =
        deployment.lambda.invoke().function_name(deployment.name(SEQUENCER)?).payload(payload);
    let answer = call.send().await.context("the sequencer cannot be invoked")?;
    let response: Value =
        serde_json::from_slice(answer.payload.as_ref().map_or(&[], |payload| payload.as_ref()))?;
    if answer.function_error.is_some() || response["void"].is_null() {
        bail!("the sequencer did not make `{name}` void: {response}");
    }
    show(if is_void { "void already" } else { "void" });
    Ok(true)
}

/// Returns the number of the first segment that names an entry. It reads `$all` from its beginning,
/// at a read unit for each 4 KB.
async fn find_segment(sequence: &impl EventLog, entry: &Entry) -> Result<Option<u64>> {
    let mut after = 0;
    loop {
        let (page, complete) = segments(sequence, after).await?;
        if let Some(found) = page.iter().find(|segment| segment.entries.contains(entry)) {
            return Ok(Some(found.number));
        }
        after = page.last().map_or(after, |last| last.number);
        if complete {
            return Ok(None);
        }
    }
}
