use futures::executor::block_on;
use proptest::prelude::*;

use super::{
    super::{Candidate, NamedEntry, Sequencer, candidates},
    *,
};
use crate::{MemoryStore, RecordedEvent, contract::commit};

/// Returns a log with these numbers of commits of tanks and lamps, and its `$all`. The records
/// arrive one by one, a stream after the other, each at its own second.
fn sequenced_streams(streams: &[u64]) -> (Subscription<MemoryStore, MemoryStore>, Vec<Entry>) {
    let log = MemoryStore::default();
    let sequence = MemoryStore::default();
    let mut sequencer = Sequencer::new(MemoryStore::HOST.pause);
    let mut order = Vec::new();
    for version in 1..=streams.iter().copied().max().unwrap_or_default() {
        for (number, _) in streams.iter().enumerate().filter(|(_, last)| **last >= version) {
            let category = if number % 2 == 0 { "tank" } else { "lamp" };
            let mut commit =
                commit(&StreamId::new(category, &number.to_string()).unwrap(), version);
            let event_type = if version == 1 { "Made" } else { "Used" };
            commit.events =
                vec![RecordedEvent { event_type: event_type.into(), schema: 1, data: "{}".into() }];
            block_on(log.append(&commit, None)).unwrap();
            let at = Timestamp::from_second(order.len() as i64).unwrap();
            let appended = sequencer.append(&sequence, &log, "b", candidates([&commit]), at);
            assert_eq!(block_on(appended).unwrap().segments, 1);
            order.push(Entry { stream: commit.stream, version });
        }
    }
    (Subscription { sequence, log, filter: Filter::default(), limit: 3 }, order)
}

/// Appends these entries to `$all`.
fn append(world: &Subscription<MemoryStore, MemoryStore>, candidates: Vec<Candidate>) {
    let mut sequencer = Sequencer::new(MemoryStore::HOST.pause);
    let (sequence, log) = (&world.sequence, &world.log);
    block_on(sequencer.append(sequence, log, "b", candidates, Timestamp::UNIX_EPOCH)).unwrap();
}

/// Makes an entry of this segment void.
fn void(world: &Subscription<MemoryStore, MemoryStore>, segment: u64, entry: Entry) {
    let mut sequencer = Sequencer::new(MemoryStore::HOST.pause);
    let named = NamedEntry { segment, entry };
    let (sequence, log) = (&world.sequence, &world.log);
    block_on(sequencer.void(sequence, log, named, "w", Timestamp::UNIX_EPOCH)).unwrap();
}

fn read(subscription: &Subscription<MemoryStore, MemoryStore>, mut cursor: Cursor) -> Vec<Entry> {
    let mut read = Vec::new();
    loop {
        let page = block_on(subscription.read_page(cursor)).unwrap();
        assert!(page.delivered.len() <= subscription.limit);
        read.extend(page.delivered.iter().map(|delivered| delivered.entry.clone()));
        cursor = page.cursor.to_string().parse().unwrap();
        if page.complete {
            return read;
        }
    }
}

#[test]
fn a_reader_resumes_from_the_beginning_from_now_from_a_time_and_from_any_commit() {
    let (subscription, order) = sequenced_streams(&[3, 2, 4]);
    assert_eq!(read(&subscription, Cursor::beginning()), order);
    assert_eq!(read(&subscription, block_on(subscription.cursor_at_end()).unwrap()), []);
    for second in 0..=order.len() + 1 {
        let time = Timestamp::from_second(second as i64).unwrap();
        let from = block_on(subscription.cursor_at(time)).unwrap();
        assert_eq!(read(&subscription, from), order[second.min(order.len())..], "{second}");
    }
    let whole = Subscription { limit: 100, ..subscription };
    let page = block_on(whole.read_page(Cursor::beginning())).unwrap();
    for (place, delivered) in page.delivered.iter().enumerate() {
        assert_eq!(read(&whole, delivered.cursor), order[place + 1..]);
    }
}

#[test]
fn a_filter_passes_only_its_categories_and_event_types_and_the_cursor_moves_on() {
    let (mut subscription, order) = sequenced_streams(&[3, 2, 4]);
    subscription.filter.categories = BTreeSet::from(["lamp".to_owned()]);
    let lamps: Vec<_> =
        order.iter().filter(|entry| entry.stream.category() == "lamp").cloned().collect();
    assert_eq!(read(&subscription, Cursor::beginning()), lamps);
    subscription.filter =
        Filter { events: BTreeSet::from(["Made".to_owned()]), ..Filter::default() };
    let made: Vec<_> = order.iter().filter(|entry| entry.version == 1).cloned().collect();
    assert_eq!(read(&subscription, Cursor::beginning()), made);
    subscription.filter.categories = BTreeSet::from(["moon".to_owned()]);
    let page = block_on(subscription.read_page(Cursor::beginning())).unwrap();
    assert!(page.complete && page.delivered.is_empty());
    assert_eq!(page.cursor, block_on(subscription.cursor_at_end()).unwrap());
}

#[test]
fn large_filtered_commits_end_a_page_and_hide_no_later_commit() {
    let (mut subscription, mut order) = sequenced_streams(&[]);
    let part = subscription.log.read_batch_size();
    let large = PAGE_BYTES / part + 1;
    let last = 2 * part as u64 + 5;
    for version in 1..=last {
        let mut commit = commit(&StreamId::new("tank", "0").unwrap(), version);
        let wanted = version > part as u64 && version % 50 == 0;
        let event_type = if wanted { "Made" } else { "Used" };
        let data = format!("\"{}\"", "x".repeat(large));
        commit.events = vec![RecordedEvent { event_type: event_type.into(), schema: 1, data }];
        block_on(subscription.log.append(&commit, None)).unwrap();
        if wanted {
            order.push(Entry { stream: commit.stream, version });
        }
    }
    let named =
        (1..=last).map(|version| Entry { stream: StreamId::new("tank", "0").unwrap(), version });
    append(&subscription, named.map(Candidate::from_record).collect());
    subscription.limit = 1_000;
    subscription.filter.events = BTreeSet::from(["Made".to_owned()]);
    let first = block_on(subscription.read_page(Cursor::beginning())).unwrap();
    assert!(
        first.delivered.is_empty() && !first.complete,
        "the first page is full of what is left out"
    );
    assert_eq!(read(&subscription, Cursor::beginning()), order);
}

#[test]
fn a_cursor_of_another_order_is_refused() {
    let (subscription, _) = sequenced_streams(&[3, 2]);
    let error = |subscription: &Subscription<_, _>, cursor: &Cursor| match block_on(
        subscription.read_page(*cursor),
    ) {
        Err(SubscriptionError::Cursor(error)) => Some(error),
        _ => None,
    };
    let now = block_on(subscription.cursor_at_end()).unwrap();
    let (anew, _) = sequenced_streams(&[2, 3]);
    assert_eq!(error(&anew, &now), Some(CursorError::Lost));
    let (restored, _) = sequenced_streams(&[2, 2]);
    assert_eq!(error(&restored, &now), Some(CursorError::Ahead));
}

#[test]
fn a_missing_commit_is_reported_and_blocks_no_other() {
    let (subscription, _) = sequenced_streams(&[3, 2]);
    let lost = Subscription { log: MemoryStore::default(), limit: 100, ..subscription };
    block_on(lost.log.append(&commit(&StreamId::new("tank", "0").unwrap(), 1), None)).unwrap();
    let page = block_on(lost.read_page(Cursor::beginning())).unwrap();
    assert!(page.delivered[0].commit.is_ok());
    assert!(page.delivered[1..].iter().all(|lost| lost.commit == Err(MISSING.to_owned())));
    // The page reports a hole in the middle as well. Neither the commit after the hole nor the
    // commit before it takes its place.
    block_on(lost.log.append(&commit(&StreamId::new("tank", "0").unwrap(), 3), None)).unwrap();
    let page = block_on(lost.read_page(Cursor::beginning())).unwrap();
    let of_tank =
        page.delivered.iter().filter(|delivered| delivered.entry.stream.as_str() == "tank-0");
    let there: Vec<_> =
        of_tank.map(|delivered| (delivered.entry.version, delivered.commit.is_ok())).collect();
    assert_eq!(there, [(1, true), (2, false), (3, true)]);
    let third = commit(&StreamId::new("tank", "0").unwrap(), 3);
    let error = block_on(lost.due_commits(&third, 1)).unwrap_err().to_string();
    assert!(error.contains("commit 2 of tank-0") && error.contains("$all names it"), "{error}");
}

#[test]
fn a_void_entry_is_not_delivered_and_another_missing_commit_is_reported() {
    // Given entries of `$all` for two commits that are not in the log,
    let (subscription, order) = sequenced_streams(&[3, 2]);
    let wrong = |version| Entry { stream: StreamId::new("tank", "forged").unwrap(), version };
    let named = [wrong(7), wrong(9)].map(Candidate::from_record).to_vec();
    let whole = Subscription { limit: 100, ..subscription };
    append(&whole, named);
    // when an operator voids one of the entries,
    void(&whole, 6, wrong(7));
    // then readers pass the void entry,
    let page = block_on(whole.read_page(Cursor::beginning())).unwrap();
    let read: Vec<_> = page.delivered.iter().map(|delivered| delivered.entry.clone()).collect();
    assert_eq!(read, [&order[..], &[wrong(9)]].concat());
    assert_eq!(page.delivered.last().unwrap().commit, Err(MISSING.to_owned()));
    assert_eq!(
        page.cursor,
        block_on(whole.cursor_at_end()).unwrap(),
        "the cursor is after the void segment"
    );
    // their cursor passes any number of void segments,
    let many = (100..140).map(|version| Candidate::from_record(wrong(version))).collect();
    append(&whole, many);
    (100..140).for_each(|version| void(&whole, 8, wrong(version)));
    let page = block_on(whole.read_page(page.cursor)).unwrap();
    assert!(page.complete && page.delivered.is_empty());
    assert_eq!(page.cursor, block_on(whole.cursor_at_end()).unwrap());
    // and a later commit with the version of the void entry is delivered.
    block_on(whole.log.append(&commit(&wrong(7).stream, 7), None)).unwrap();
    let page = block_on(whole.read_page(Cursor::beginning())).unwrap();
    assert!(page.delivered.iter().any(|it| it.entry == wrong(7) && it.commit.is_ok()));
}

proptest! {
    /// A subscriber that stores its positions applies each commit once, for any delivered
    /// entries in any order.
    #[test]
    fn due_commits_are_applied_once_and_in_the_order_of_the_stream(handed in prop::collection::vec(1..=6_u64, 1..20)) {
        let (subscription, _) = sequenced_streams(&[6]);
        let stream = StreamId::new("tank", "0").unwrap();
        let (mut position, mut applied) = (0, Vec::new());
        for version in &handed {
            let commit = block_on(subscription.log.get(&stream, *version)).unwrap().unwrap();
            loop {
                let due = block_on(subscription.due_commits(&commit, position)).unwrap();
                let Some(last) = due.last().map(|commit| commit.version) else { break };
                applied.extend(due.iter().map(|commit| commit.version));
                position = last;
            }
        }
        let last = handed.iter().copied().max().unwrap();
        prop_assert_eq!(applied, (1..=last).collect::<Vec<_>>());
    }
}
