//! The rows that each view has of one stream.

use std::collections::BTreeSet;

use anyhow::{Result, bail};
use ledgerline::StreamId;
use serde_json::{Value, json};

use crate::{
    Output, Stack,
    deployment::{Deployment, is_denied},
    row_values::row_name,
    subscribers::subscribers,
    view_folds::{UNKNOWN, ViewFolds},
};

/// Prints the rows that each view has of a stream: those that the fold of the stream touches, up to
/// the view's position. Returns whether all views could be asked.
pub(crate) async fn show(
    deployment: &Deployment,
    stack: &Stack,
    stream: &StreamId,
    out: Output,
) -> Result<bool> {
    let subscribers = subscribers(deployment, stack).await?;
    let readers = subscribers.iter().filter(|subscriber| subscriber.compared.takes(stream));
    let mut rows = Vec::new();
    let mut is_known = true;
    for subscriber in readers {
        let view = match ViewFolds::new(deployment, subscriber) {
            Ok(view) => view,
            Err(reason) => {
                rows.push(json!({ "who": subscriber.compared.id, "reason": reason }));
                continue;
            }
        };
        match read(&view, stream).await {
            Ok(found) => rows.extend(found),
            Err(error) if is_denied(&error) => {
                is_known = false;
                rows.push(json!({ "who": subscriber.compared.id, "reason": UNKNOWN }));
            }
            Err(error) => {
                is_known = false;
                let reason = format!("{error:#}");
                rows.push(json!({ "who": subscriber.compared.id, "reason": reason }));
            }
        }
    }
    out.rows(&["who", "version", "row", "fields", "reason"], &rows);
    Ok(is_known)
}

async fn read(view: &ViewFolds<'_>, stream: &StreamId) -> Result<Vec<Value>> {
    let versions = view.versions([stream].into_iter()).await?;
    let mut folds = view.begin([stream.clone()]);
    let who = &view.subscriber.compared.id;
    if let Some(reason) = view.advance(&mut folds, &versions).await?.into_values().next() {
        bail!("the function cannot fold the stream: {reason}");
    }
    let keys = folds.values().flat_map(|fold| fold.changes.iter());
    let keys: BTreeSet<_> = keys.map(|(key, _)| key.clone()).collect();
    let stored = view.read_rows(&keys).await?.into_iter();
    let stored = stored.filter_map(|(key, row)| Some((key, row.fields?)));
    let version = versions[stream];
    let row = |(key, fields)| json!({ "who": who, "version": version, "row": row_name(&key), "fields": fields });
    Ok(stored.map(row).collect())
}
