//! The tests that every [`EventLog`] must pass.

#![expect(clippy::unwrap_used, reason = "these are tests")]

use std::collections::BTreeSet;

use super::{ALL, commit, read_all, request, stream};
use crate::{
    AppendError, Commit, Consistency, EventLog, FoldedCommit, IdempotencyStore, Meta, Range,
    RecordedEvent, RecordedState, append_all_once,
};

/// Given nothing, a stream has no commits, and its first page is complete.
pub(super) async fn an_unknown_stream_is_empty(store: &impl EventLog) {
    for consistency in [Consistency::Eventual, Consistency::Strong] {
        let page = store.read(&stream("none"), ALL, consistency).await.unwrap();
        assert_eq!((page.commits, page.complete), (vec![], true));
    }
    assert_eq!(store.get(&stream("none"), 1).await.unwrap(), None);
}

/// Given a commit with all of its fields, a read returns it exactly as written, to the last digit
/// of its payload and time.
pub(super) async fn what_was_appended_is_read_as_it_was_written(store: &impl EventLog) {
    let full = Commit {
        events: vec![
            RecordedEvent {
                event_type: "Priced".into(),
                schema: 3,
                data: r#"{"rate":1.0,"big":9007199254740991,"text":"ö \" \n"}"#.into(),
            },
            RecordedEvent { event_type: "Sent".into(), schema: 1, data: "{}".into() },
        ],
        state: Some(RecordedState { schema: 7, data: r#"{"rate":1.0}"#.into() }),
        meta: Meta {
            actor: Some("ada".into()),
            correlation_id: Some("corr".into()),
            causation_id: Some("cause".into()),
            source_address: Some("192.0.2.1".into()),
            trace_id: Some("Root=1-2-3".into()),
        },
        ..commit(&stream("full"), 1)
    };
    let bare = commit(&stream("full"), 2);
    store.append(&full, None).await.unwrap();
    store.append(&bare, None).await.unwrap();
    assert_eq!(read_all(store, &stream("full"), ALL).await, [full.clone(), bare.clone()]);
    assert_eq!(store.get(&stream("full"), 1).await.unwrap().as_ref(), Some(&full));
    let (stream, none) = (stream("full"), stream("none"));
    let found =
        store.get_all(&[(&none, 1), (&stream, 2), (&stream, 3), (&stream, 1)]).await.unwrap();
    let found: Vec<_> = found.into_iter().map(Result::unwrap).collect();
    assert_eq!(found, [None, Some(bare), None, Some(full)], "in the order of the names");
    // More commits than a store reads in one call.
    let names: Vec<_> = (1..=120).rev().map(|version| (&stream, version)).collect();
    let found = store.get_all(&names).await.unwrap();
    let versions: Vec<_> =
        found.into_iter().map(|found| found.unwrap().map(|commit| commit.version)).collect();
    assert_eq!((versions.len(), &versions[117..]), (120, &[None, Some(2), Some(1)][..]));
}

/// Rules 2 and 3: a version is taken once, and its commit is never overwritten.
pub(super) async fn a_taken_version_is_refused_and_what_took_it_stays(store: &impl EventLog) {
    let first = commit(&stream("taken"), 1);
    let second = Commit { command: "another".into(), ..first.clone() };
    store.append(&first, None).await.unwrap();
    assert!(matches!(store.append(&second, None).await, Err(AppendError::VersionTaken)));
    assert!(matches!(store.append(&first, None).await, Err(AppendError::VersionTaken)));
    assert_eq!(read_all(store, &stream("taken"), ALL).await, [first]);
}

/// Given 250 commits, pages of any size show each once, newest first.
pub(super) async fn pages_cover_the_stream_newest_first_without_holes(store: &impl EventLog) {
    let stream = stream("pages");
    for version in 1..=250 {
        store.append(&commit(&stream, version), None).await.unwrap();
    }
    for limit in [None, Some(1), Some(7), Some(250), Some(1_000)] {
        let commits = read_all(store, &stream, Range { limit, ..ALL }).await;
        let versions: Vec<_> = commits.iter().map(|commit| commit.version).collect();
        assert_eq!(versions, (1..=250).collect::<Vec<_>>(), "limit {limit:?}");
    }
}

/// Given ten commits, a read returns only those of its range.
pub(super) async fn a_range_bounds_what_is_read(store: &impl EventLog) {
    let stream = stream("range");
    for version in 1..=10 {
        store.append(&commit(&stream, version), None).await.unwrap();
    }
    for (after, up_to, expected) in [
        (0, 10, (1..=10).collect()),
        (3, 6, vec![4, 5, 6]),
        (9, u64::MAX, vec![10]),
        (0, 1, vec![1]),
        (10, u64::MAX, vec![]),
        (6, 6, vec![]),
    ] {
        let commits = read_all(store, &stream, Range { after, up_to, limit: None }).await;
        let versions: Vec<_> = commits.iter().map(|commit| commit.version).collect();
        assert_eq!(versions, expected, "after {after} up to {up_to}");
    }
}

/// Given many commits, forward pages show those above one version and up to another, each once,
/// oldest first.
pub(super) async fn forward_pages_cover_a_range_oldest_first_without_holes(store: &impl EventLog) {
    for version in 1..=250 {
        store.append(&commit(&stream("forward"), version), None).await.unwrap();
    }
    for (after, up_to, expected) in
        [(0, u64::MAX, 1..=250), (7, 240, 8..=240), (249, 250, 250..=250)]
    {
        let (mut versions, mut at) = (Vec::new(), after);
        loop {
            let page = store.read_forwards(&stream("forward"), at, up_to).await.unwrap();
            versions.extend(page.commits.iter().map(|commit| commit.version));
            if page.complete {
                break;
            }
            at = *versions.last().unwrap();
        }
        assert_eq!(versions, expected.collect::<Vec<_>>());
    }
    for (after, up_to) in [(250, u64::MAX), (250, 250), (9, 3)] {
        let page = store.read_forwards(&stream("forward"), after, up_to).await.unwrap();
        assert_eq!((page.commits, page.complete), (vec![], true));
    }
}

/// Given commits with states, without them and without events, a page for a fold has the events and
/// states of the page's commits.
pub(super) async fn a_page_for_a_fold_has_what_the_commits_of_the_page_have(store: &impl EventLog) {
    let stream = stream("steps");
    for version in 1..=130 {
        let state = RecordedState { schema: 1, data: format!(r#"{{"n":{version}}}"#) };
        let mut written =
            Commit { state: (version % 3 == 0).then_some(state), ..commit(&stream, version) };
        written.events.truncate(usize::from(version % 5 != 0));
        store.append(&written, None).await.unwrap();
    }
    let limited = Range { after: 3, up_to: 90, limit: Some(7) };
    // The third range has as many commits as a page may have.
    for range in [ALL, limited, Range { up_to: 10, ..limited }, Range { after: 130, ..ALL }] {
        for consistency in [Consistency::Eventual, Consistency::Strong] {
            let whole = store.read(&stream, range, consistency).await.unwrap();
            let page = store.read_for_fold(&stream, range, consistency).await.unwrap();
            let mut expected: Vec<_> = whole.commits.into_iter().map(FoldedCommit::from).collect();
            if page.commits.len() < expected.len() {
                assert!(page.commits.iter().any(|commit| commit.state.is_some()));
                assert!(!page.complete);
                expected.truncate(page.commits.len());
            } else {
                assert_eq!(page.complete, whole.complete);
            }
            assert_eq!(page.commits, expected);
        }
        let whole = store.read_forwards(&stream, range.after, range.up_to).await.unwrap();
        let page = store.read_forwards_for_fold(&stream, range.after, range.up_to).await.unwrap();
        assert_eq!(page.complete, whole.complete);
        assert_eq!(
            page.commits,
            whole.commits.into_iter().map(FoldedCommit::from).collect::<Vec<_>>()
        );
    }
}

/// A store that stops at the end of the database's first page loses the stream's beginning without
/// an error.
pub(super) async fn a_stream_of_more_than_a_megabyte_is_read_whole(store: &impl EventLog) {
    let stream = stream("long");
    let data = format!(r#"{{"text":"{}"}}"#, "x".repeat(12_000));
    for version in 1..=120 {
        let mut commit = commit(&stream, version);
        commit.events[0].data.clone_from(&data);
        store.append(&commit, None).await.unwrap();
    }
    let commits = read_all(store, &stream, ALL).await;
    assert_eq!(commits.len(), 120);
    assert!(commits.iter().all(|commit| commit.events[0].data == data));
}

/// Given streams whose names begin alike, each has its own commits.
pub(super) async fn streams_do_not_see_each_other(store: &impl EventLog) {
    for id in ["a", "a-b", "ab"] {
        store.append(&commit(&stream(id), 1), None).await.unwrap();
    }
    store.append(&commit(&stream("a"), 2), None).await.unwrap();
    assert_eq!(read_all(store, &stream("a"), ALL).await.len(), 2);
    assert_eq!(read_all(store, &stream("ab"), ALL).await, [commit(&stream("ab"), 1)]);
}

/// Rule 2, under concurrency: eight writers, twenty versions, one winner each.
pub(super) async fn of_concurrent_appends_at_one_version_exactly_one_wins(store: &impl EventLog) {
    let stream = stream("race");
    for version in 1..=20 {
        let attempts = (0..8).map(|writer| {
            let commit =
                Commit { command: format!("{version}-{writer}"), ..commit(&stream, version) };
            async move {
                match store.append(&commit, None).await {
                    Ok(()) => Some(commit),
                    Err(AppendError::VersionTaken | AppendError::Busy) => None,
                    Err(error) => panic!("{error}"),
                }
            }
        });
        let winners: Vec<_> =
            futures::future::join_all(attempts).await.into_iter().flatten().collect();
        assert_eq!(winners.len(), 1);
        assert_eq!(store.get(&stream, version).await.unwrap().as_ref(), winners.first());
    }
    let commands: BTreeSet<_> =
        read_all(store, &stream, ALL).await.into_iter().map(|commit| commit.command).collect();
    assert_eq!(commands.len(), 20);
}

/// Commits of several streams are stored together or not at all. Otherwise money could leave one
/// stream and never arrive in the other.
pub(super) async fn commits_of_several_streams_are_stored_all_or_none(
    store: &(impl EventLog + IdempotencyStore),
) {
    let from = stream("from");
    let to = stream("to");
    store.append(&commit(&from, 1), None).await.unwrap();
    let both = [commit(&from, 2), commit(&to, 1)];
    store.append_all(&both, Some(&request("k-all", "both"))).await.unwrap();
    assert_eq!(read_all(store, &from, ALL).await, [commit(&from, 1), both[0].clone()]);
    assert_eq!(read_all(store, &to, ALL).await, [both[1].clone()]);
    assert_eq!(store.find_response("k-all").await.unwrap().unwrap().answer, "both");

    // If one of the versions is taken, neither the commits nor the request may appear.
    for (from_version, to_version) in [(2, 2), (3, 1)] {
        let commits = [commit(&from, from_version), commit(&to, to_version)];
        for request in [None, Some(request("k-none", "none"))] {
            let refused = store.append_all(&commits, request.as_ref()).await;
            assert!(matches!(refused, Err(AppendError::VersionTaken)), "{refused:?}");
        }
    }
    // The request is taken: the commits must not appear, though their versions are free.
    let free = [commit(&from, 3), commit(&to, 2)];
    let refused = store.append_all(&free, Some(&request("k-all", "again"))).await;
    assert!(matches!(refused, Err(AppendError::RequestTaken)), "{refused:?}");
    assert_eq!(read_all(store, &from, ALL).await.len(), 2);
    assert_eq!(read_all(store, &to, ALL).await.len(), 1);
    assert_eq!(store.find_response("k-none").await.unwrap(), None);
}

/// Rule 2 over two streams at once: eight writers, which name them in either order, five versions,
/// one winner each.
pub(super) async fn of_concurrent_transactions_over_the_same_streams_exactly_one_wins(
    store: &impl EventLog,
) {
    let streams = [stream("left"), stream("right")];
    for version in 1..=5 {
        let attempts = (0..8).map(|writer| {
            let mut commits = streams.clone().map(|stream| Commit {
                command: format!("{version}-{writer}"),
                ..commit(&stream, version)
            });
            if writer % 2 == 1 {
                commits.reverse();
            }
            async move {
                match store.append_all(&commits, None).await {
                    Ok(()) => Some(commits[0].command.clone()),
                    Err(AppendError::VersionTaken | AppendError::Busy) => None,
                    Err(error) => panic!("{error}"),
                }
            }
        });
        let winners: Vec<_> =
            futures::future::join_all(attempts).await.into_iter().flatten().collect();
        assert_eq!(winners.len(), 1);
        for stream in &streams {
            let stored = store.get(stream, version).await.unwrap().unwrap();
            assert_eq!(stored.command, winners[0]);
        }
    }
}

/// Rule 4 over several streams: a transaction that is sent again, because its reply was lost, is a
/// success. Another transaction at the same versions is refused. Commits that cannot be one
/// transaction are refused.
pub(super) async fn the_same_transaction_twice_is_one(store: &impl EventLog) {
    let both = [commit(&stream("once-a"), 1), commit(&stream("once-b"), 1)];
    for _ in 0..2 {
        append_all_once(store, &both, None).await.unwrap();
    }
    let another = both.clone().map(|commit| Commit { command: "another".into(), ..commit });
    let half = [both[0].clone(), commit(&stream("once-c"), 1)];
    let twice = [commit(&stream("once-d"), 1), commit(&stream("once-d"), 1)];
    for commits in [&another, &half, &twice] {
        let refused = append_all_once(store, commits, None).await;
        assert!(matches!(refused, Err(AppendError::VersionTaken)), "{refused:?}");
    }
    for id in ["once-c", "once-d"] {
        assert_eq!(read_all(store, &stream(id), ALL).await, []);
    }
    append_all_once(store, &[], None).await.unwrap();
    // A request without commits is not recognised, because it has no commit to recognise it by.
    append_all_once(store, &[], Some(&request("k-alone", "first"))).await.unwrap();
    let refused = append_all_once(store, &[], Some(&request("k-alone", "second"))).await;
    assert!(matches!(refused, Err(AppendError::RequestTaken)), "{refused:?}");
}
