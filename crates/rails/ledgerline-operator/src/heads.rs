//! The last version of every stream, and the holes in them.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use aws_sdk_dynamodb::types::AttributeValue;
use futures::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use ledgerline::StreamId;

use crate::deployment::Deployment;

/// The parts of the table that are read at once.
const SEGMENTS: i32 = 8;

/// The last commit of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Head {
    /// Its version.
    pub(crate) version: u64,
    /// Its time.
    pub(crate) at: Option<Timestamp>,
    /// The first version that is not there, if one below the last is not.
    pub(crate) hole: Option<u64>,
}

impl Head {
    /// Takes the next commit of the stream, in ascending order of versions.
    fn next(head: Option<&Self>, version: u64, at: Option<Timestamp>) -> Self {
        let before = head.map_or(0, |head| head.version);
        let hole = head.and_then(|head| head.hole).or((version != before + 1).then_some(before + 1));
        Self { version, at, hole }
    }
}

/// The heads of all streams. Reads the whole table, at half a read unit for each 4 KB: a scan returns each stream whole, and in order.
pub(crate) async fn all(deployment: &Deployment) -> Result<BTreeMap<StreamId, Head>> {
    let table = deployment.shared("COMMITS_TABLE")?;
    let parts = stream::iter(0..SEGMENTS).map(|segment| async move {
        let mut heads = BTreeMap::<StreamId, Head>::new();
        let scan = deployment
            .dynamodb
            .scan()
            .table_name(table)
            .segment(segment)
            .total_segments(SEGMENTS)
            .projection_expression("#stream, #version, #at")
            .expression_attribute_names("#stream", "stream")
            .expression_attribute_names("#version", "version")
            .expression_attribute_names("#at", "at");
        let mut items = scan.into_paginator().items().send();
        while let Some(item) = items.next().await {
            let item = item.context("the log cannot be read")?;
            let text = |name: &str| item.get(name).and_then(|value| value.as_s().ok());
            let version =
                item.get("version").and_then(|version: &AttributeValue| version.as_n().ok()?.parse().ok());
            let stream = text("stream").and_then(|stream| StreamId::try_from(stream.clone()).ok());
            let Some((stream, version)) = stream.zip(version) else { continue };
            let head = Head::next(heads.get(&stream), version, text("at").and_then(|at| at.parse().ok()));
            heads.insert(stream, head);
        }
        Ok::<_, anyhow::Error>(heads)
    });
    let parts: Vec<_> = parts.buffer_unordered(SEGMENTS as usize).try_collect().await?;
    Ok(parts.into_iter().flatten().collect())
}

/// The heads of these streams, read one by one.
pub(crate) async fn of(deployment: &Deployment, streams: Vec<StreamId>) -> Result<BTreeMap<StreamId, Head>> {
    use ledgerline::{Consistency, EventStore, Range};
    let log = deployment.log()?;
    let heads = stream::iter(streams).map(|stream| {
        let log = log.clone();
        async move {
            let newest = Range { after: 0, up_to: u64::MAX, limit: Some(1) };
            let page = log.read(&stream, newest, Consistency::Strong).await?;
            let newest = page.commits.first();
            let (version, at) = newest.map_or((0, None), |commit| (commit.version, Some(commit.at)));
            Ok::<_, anyhow::Error>((stream, Head { version, at, hole: None }))
        }
    });
    heads.buffer_unordered(32).try_collect().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hole_is_the_first_version_that_is_not_there() {
        for (versions, last, hole) in
            [(vec![1, 2, 3], 3, None), (vec![2, 3], 3, Some(1)), (vec![1, 4, 6], 6, Some(2))]
        {
            let head =
                versions.iter().fold(None, |head, version| Some(Head::next(head.as_ref(), *version, None)));
            let head = head.unwrap();
            assert_eq!((head.version, head.hole), (last, hole), "{versions:?}");
        }
    }
}
