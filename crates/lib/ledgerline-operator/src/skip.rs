//! The skip of a commit that a subscription cannot apply.

use anyhow::{Context, Result, bail};
use clap::Args;
use jiff::Timestamp;
use ledgerline::{StreamId, manifest::SubscriberKind};
use ledgerline_dynamodb::Move;
use serde_json::json;

use crate::{
    Output, Stack, WriteArgs,
    deployment::Deployment,
    records::{self, Record},
    subscribers::{find, subscribers},
};

/// The options of `ledger skip`.
#[derive(Debug, Args)]
pub(crate) struct SkipArgs {
    /// The logical id of the subscription, or its beginning: Bookings.
    view: String,
    /// The stream of the commit.
    stream: String,
    /// The version of the commit.
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    version: u64,
    #[command(flatten)]
    write_args: WriteArgs,
}

/// Skips the commit with `--write`; without it, prints whether the commit is skipped. Returns
/// `false` only if the operator declines.
pub(crate) async fn run(
    deployment: &Deployment,
    stack: &Stack,
    options: &SkipArgs,
    out: Output,
) -> Result<bool> {
    let SkipArgs { view, stream, version, write_args } = options;
    let stream = StreamId::try_from(stream.clone())
        .with_context(|| format!("`{stream}` is not a stream name (`category-id`)"))?;
    let all = subscribers(deployment, stack).await?;
    let compared = &find(&all, view)?.compared;
    if compared.kind != SubscriberKind::Subscription {
        bail!("`{}` is not a subscription: there, a commit stops only its own stream", compared.id);
    }
    if !compared.takes(&stream) {
        bail!("`{}` applies no commits of the category `{}`", compared.id, stream.category());
    }
    if !deployment.log()?.has(&stream, *version).await? {
        bail!("the log has no version {version} of {stream}: see `ledger order void`");
    }
    let table = compared.table.at(0);
    let seen = table.generations().await?;
    let is_skipped = seen.skips(&stream, *version);
    let show = |is| {
        let row = json!({ "view": compared.id, "stream": stream, "version": version, "is": is });
        out.rows(&["view", "stream", "version", "is"], &[row]);
    };
    if is_skipped || !write_args.write {
        show(if is_skipped {
            "skipped already"
        } else {
            "not skipped: --write skips it if it cannot be applied"
        });
        return Ok(true);
    }
    let ask =
        format!("make {} skip version {version} of {stream} if it cannot be applied?", compared.id);
    if !write_args.confirm(&ask)? {
        return Ok(false);
    }
    let skipping = seen.skip_commit(&stream, *version)?;
    let what = format!("skip {stream} {version}");
    let why = write_args.why();
    let detail = json!({ "view": compared.id, "stream": stream, "version": version });
    // The view stores only its last changes, but the record stays.
    let record = Record { kind: "skip", what: what.clone(), why: why.clone(), detail };
    records::store(deployment, records::table(deployment)?, record).await?;
    let (at, who) = (Timestamp::now(), deployment.operator().await?);
    let by = Move { at, what, who, why, ..Move::default() };
    if !table.compare_and_set(&seen, skipping, by).await? {
        bail!("the generations of `{}` changed meanwhile; run the command again", compared.id);
    }
    show("skipped, if it cannot be applied");
    Ok(true)
}
