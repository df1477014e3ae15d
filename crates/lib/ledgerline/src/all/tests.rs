use std::collections::BTreeMap;

use futures::executor::block_on;
use proptest::prelude::*;

use super::*;
use crate::{MemoryStore, contract::commit};

fn entry(id: &str, version: u64) -> Entry {
    Entry { stream: StreamId::new("tank", id).unwrap(), version }
}

fn named_entry(segment: u64, entry: Entry) -> NamedEntry {
    NamedEntry { segment, entry }
}

fn read_segments(store: &impl EventLog) -> Vec<Segment> {
    let (mut read, mut after) = (Vec::new(), 0);
    loop {
        let (segments, complete) = block_on(segments(store, after)).unwrap();
        after = segments.last().map_or(after, |last| last.number);
        read.extend(segments);
        if complete {
            return read;
        }
    }
}

/// Returns the entries that a reader with these positions applies.
fn apply_entries(segments: &[Segment], positions: &mut BTreeMap<StreamId, u64>) -> Vec<Entry> {
    let mut applied = Vec::new();
    for Entry { stream, version } in segments.iter().flat_map(|segment| &segment.entries) {
        let position = positions.entry(stream.clone()).or_default();
        while *position < *version {
            *position += 1;
            applied.push(Entry { stream: stream.clone(), version: *position });
        }
    }
    applied
}

/// Appends the entries of a batch, and returns the number of new segments.
fn append(
    store: &MemoryStore,
    sequencer: &mut Sequencer,
    batch: &str,
    entries: Vec<Entry>,
) -> usize {
    let candidates = entries.into_iter().map(Candidate::from_record).collect();
    let log = MemoryStore::default();
    block_on(sequencer.append(store, &log, batch, candidates, Timestamp::UNIX_EPOCH))
        .unwrap()
        .segments
}

#[test]
fn redelivered_records_add_no_entry_even_if_they_arrive_out_of_order() {
    let store = MemoryStore::default();
    let mut sequencer = Sequencer::new(MemoryStore::HOST.pause);
    assert_eq!(
        append(&store, &mut sequencer, "1", vec![entry("a", 2), entry("b", 1), entry("a", 1)]),
        1
    );
    assert_eq!(append(&store, &mut sequencer, "2", vec![entry("a", 1), entry("b", 1)]), 0);
    // Another instance gets the batch, with other bounds.
    let mut other = Sequencer::new(MemoryStore::HOST.pause);
    assert_eq!(append(&store, &mut other, "3", vec![entry("a", 2), entry("a", 3)]), 1);
    assert_eq!(append(&store, &mut sequencer, "4", vec![entry("a", 3), entry("b", 2)]), 1);
    let entries: Vec<_> =
        read_segments(&store).into_iter().map(|segment| segment.entries).collect();
    let first = vec![entry("a", 2), entry("b", 1), entry("a", 1)];
    assert_eq!(entries, [first, vec![entry("a", 3)], vec![entry("b", 2)]]);
}

/// A segment that is far in the future has its time from a wrong clock. Otherwise a segment is
/// never earlier than the segment before it.
#[test]
fn the_time_of_a_segment_is_earlier_than_the_last_only_if_the_last_is_far_in_the_future() {
    let store = MemoryStore::default();
    let (mut first, mut second) =
        (Sequencer::new(MemoryStore::HOST.pause), Sequencer::new(MemoryStore::HOST.pause));
    for (number, seconds) in [(1, 10), (2, 5), (3, 12), (4, 11), (5, 9_999), (6, 13)] {
        let sequencer = if number % 2 == 0 { &mut second } else { &mut first };
        let at = Timestamp::from_second(seconds).unwrap();
        let candidates = vec![Candidate::from_record(entry("a", number))];
        block_on(sequencer.append(&store, &MemoryStore::default(), "b", candidates, at)).unwrap();
    }
    let times: Vec<_> =
        read_segments(&store).iter().map(|segment| segment.at.as_second()).collect();
    assert_eq!(times, [10, 10, 12, 12, 9_999, 13]);
}

/// Returns the number of the first segment for a reader that begins at this second.
fn first_from(store: &MemoryStore, second: i64) -> u64 {
    let time = Timestamp::from_second(second).unwrap();
    block_on(last_segment_before(store, time)).unwrap().map_or(1, |before| before.number + 1)
}

fn segments_at(seconds: &[i64]) -> MemoryStore {
    let store = MemoryStore::default();
    for (at, number) in seconds.iter().zip(1..) {
        let candidates = vec![Candidate::from_record(entry("a", number))];
        let at = Timestamp::from_second(*at).unwrap();
        block_on(Sequencer::new(MemoryStore::HOST.pause).append(
            &store,
            &MemoryStore::default(),
            "b",
            candidates,
            at,
        ))
        .unwrap();
    }
    store
}

#[test]
fn a_reader_begins_at_a_time_despite_an_earlier_segment_in_the_future() {
    let mut seconds: Vec<_> = (0..50).map(|number| number * 1_000).collect();
    seconds[20] = 4_083_955_200;
    seconds[21] = 4_083_955_210;
    let store = segments_at(&seconds);
    for number in 24..50 {
        assert_eq!(
            first_from(&store, (number - 1) * 1_000 - 500),
            u64::try_from(number).unwrap(),
            "{number}"
        );
    }
}

proptest! {
    #[test]
    fn clocks_in_the_future_hide_no_segment_from_a_reader_that_begins_at_a_time(
        ahead in prop::collection::vec(prop::option::weighted(0.2, 0..100_000_i64), 1..30),
        from in 0..30_000_i64,
    ) {
        let right = (0..).step_by(1_000).take(ahead.len());
        let seconds: Vec<i64> = right.clone().zip(&ahead).map(|(at, ahead)| at + ahead.unwrap_or(0)).collect();
        let wanted = right.zip(1..).find(|(at, _)| *at >= from).map_or(ahead.len() as u64 + 1, |(_, number)| number);
        prop_assert!(first_from(&segments_at(&seconds), from) <= wanted);
    }
}

#[test]
fn a_large_batch_is_written_as_several_segments() {
    let store = MemoryStore::default();
    let many: Vec<_> = (1..=2_500).map(|n| entry(&n.to_string(), 1)).collect();
    assert_eq!(append(&store, &mut Sequencer::new(MemoryStore::HOST.pause), "1", many.clone()), 3);
    assert_eq!(apply_entries(&read_segments(&store), &mut BTreeMap::new()), many);
}

#[test]
fn a_consequence_follows_its_cause_even_if_its_record_arrives_first() {
    let cause = commit(&entry("a", 1).stream, 7);
    let mut consequence = commit(&entry("b", 1).stream, 1);
    consequence.meta.causation_id = Some("tank-a:7".into());
    let named = Candidate::from_claim(entry("a", 7));
    let caused = Candidate::from_record(entry("b", 1));
    let expected = [named, caused.clone(), Candidate::from_record(entry("a", 7))];
    assert_eq!(candidates([&consequence, &cause]), expected);
    for other in ["request-1", "tank-a:0", "tank-a:", ":7", "tank-a:x", "Tank-a:7"] {
        consequence.meta.causation_id = Some(other.into());
        assert_eq!(candidates([&consequence]), std::slice::from_ref(&caused), "{other}");
    }
}

/// Stored formats are permanent. A stored segment stays readable. Its checksum stays the same,
/// because cursors store it.
#[test]
fn a_stored_segment_is_read() {
    let mut written = commit(&StreamId::all_stream(), 7);
    let data = r#"[["tank-a",2],["user-b-c",18446744073709551615]]"#.to_owned();
    written.events = vec![RecordedEvent { event_type: "Sequenced".into(), schema: 1, data }];
    written.command = "4421".into();
    let segment = Segment::from_commit(&written).unwrap();
    let second = Entry { stream: StreamId::new("user", "b-c").unwrap(), version: u64::MAX };
    assert_eq!((segment.number, segment.batch.as_str()), (7, "4421"));
    assert_eq!(segment.entries, [entry("a", 2), second]);
    assert_eq!(segment.checksum(), 0x458f_387b);
    assert_eq!(segment.commit().unwrap().events, written.events);
    for (event_type, schema, data, voids, last_void) in [
        ("Voided", 1, r#"[["tank-a",2]]"#, vec![entry("a", 2)], 0),
        ("Sequenced", 2, r#"{"lastVoid":6,"entries":[["tank-a",2]]}"#, vec![], 6),
    ] {
        written.events =
            vec![RecordedEvent { event_type: event_type.into(), schema, data: data.into() }];
        let segment = Segment::from_commit(&written).unwrap();
        assert_eq!((&segment.voids, segment.last_void), (&voids, last_void));
        assert_eq!(segment.entries.len() + segment.voids.len(), 1);
        assert_eq!(segment.commit().unwrap().events, written.events);
    }
}

#[test]
fn a_hole_and_a_segment_of_another_program_are_reported_and_not_skipped() {
    let store = MemoryStore::default();
    append(&store, &mut Sequencer::new(MemoryStore::HOST.pause), "1", vec![entry("a", 1)]);
    let third = Segment {
        number: 3,
        batch: "3".into(),
        at: Timestamp::UNIX_EPOCH,
        entries: vec![],
        voids: vec![],
        last_void: 0,
    };
    block_on(store.append(&third.commit().unwrap(), None)).unwrap();
    let error = block_on(segments(&store, 0)).unwrap_err().to_string();
    assert!(error.contains("commit 2 of $all") && error.contains("missing"), "{error}");

    let other = MemoryStore::default();
    block_on(other.append(&commit(&StreamId::all_stream(), 1), None)).unwrap();
    let error = block_on(segments(&other, 0)).unwrap_err().to_string();
    assert!(error.contains("type or schema"), "{error}");
    assert!(StreamId::new("$all", "0").is_err(), "no aggregate has such a stream");
    assert_eq!(StreamId::try_from("$all".to_owned()), Ok(StreamId::all_stream()));
    assert!(StreamId::try_from("$all-0".to_owned()).is_err());
}

#[test]
fn a_claimed_entry_is_appended_only_if_the_log_has_its_commit() {
    // Given a log with one commit
    let sequence = MemoryStore::default();
    let log = MemoryStore::default();
    block_on(log.append(&commit(&entry("a", 1).stream, 1), None)).unwrap();
    let mut sequencer = Sequencer::new(MemoryStore::HOST.pause);
    // when a batch claims entries, and a record proves one of them,
    let claimed =
        [entry("a", 1), entry("a", 2), entry("b", 7), entry("c", 1)].map(Candidate::from_claim);
    let candidates = [&claimed[..], &[Candidate::from_record(entry("c", 1))]].concat();
    let appended =
        block_on(sequencer.append(&sequence, &log, "1", candidates, Timestamp::UNIX_EPOCH))
            .unwrap();
    // then only existing commits have an entry,
    assert_eq!(appended, Appended { segments: 1, unconfirmed: vec![entry("a", 2), entry("b", 7)] });
    let segments = read_segments(&sequence);
    assert_eq!(segments[0].entries, [entry("a", 1), entry("c", 1)]);
    // and the sequencer does not look up an entry that `$all` has.
    let again = vec![Candidate::from_claim(entry("c", 1))];
    let appended = block_on(sequencer.append(&sequence, &log, "2", again, Timestamp::UNIX_EPOCH));
    assert_eq!(appended.unwrap(), Appended::default());
}

#[test]
fn an_entry_is_voided_only_without_its_commit_and_a_later_commit_gets_a_new_entry() {
    let sequence = MemoryStore::default();
    let log = MemoryStore::default();
    let (mut first, mut other) =
        (Sequencer::new(MemoryStore::HOST.pause), Sequencer::new(MemoryStore::HOST.pause));
    let at = Timestamp::UNIX_EPOCH;
    // Given entries of which the log has only the first,
    block_on(log.append(&commit(&entry("a", 1).stream, 1), None)).unwrap();
    let mut stale = Sequencer::new(MemoryStore::HOST.pause);
    append(&sequence, &mut stale, "1", vec![entry("a", 1), entry("a", 2), entry("b", 1)]);
    // when an operator voids them at two sequencers,
    let refused = block_on(first.void(&sequence, &log, named_entry(1, entry("a", 1)), "v", at));
    assert!(matches!(refused, Err(VoidError::Exists)), "{refused:?}");
    block_on(first.void(&sequence, &log, named_entry(1, entry("a", 2)), "v", at)).unwrap();
    block_on(other.void(&sequence, &log, named_entry(1, entry("b", 1)), "v", at)).unwrap();
    block_on(first.void(&sequence, &log, named_entry(1, entry("b", 1)), "v", at)).unwrap();
    for (number, other) in
        [(1, entry("b", 2)), (0, entry("b", 1)), (2, entry("b", 1)), (9, entry("b", 1))]
    {
        let refused = block_on(first.void(&sequence, &log, named_entry(number, other), "v", at));
        assert!(matches!(refused, Err(VoidError::NotNamed)), "{refused:?}");
    }
    // then each is void once, and later segments name the segment of void entries,
    append(&sequence, &mut first, "2", vec![entry("c", 1)]);
    let segments = read_segments(&sequence);
    assert_eq!(segments.len(), 4);
    assert_eq!(segments[2].voids, [entry("a", 2), entry("b", 1)]);
    assert_eq!((segments[3].entries.len(), segments[3].last_void), (1, 3));
    assert_eq!(block_on(void_entries(&sequence)).unwrap(), [entry("a", 2), entry("b", 1)].into());
    // and a later commit with the version of a void entry gets a new entry, even from a
    // sequencer with a stale cache.
    assert_eq!(append(&sequence, &mut stale, "3", vec![entry("a", 2), entry("a", 1)]), 1);
    assert_eq!(append(&sequence, &mut first, "4", vec![entry("a", 2), entry("c", 1)]), 0);
    assert_eq!(
        append(
            &sequence,
            &mut Sequencer::new(MemoryStore::HOST.pause),
            "5",
            vec![entry("a", 2), entry("b", 1)]
        ),
        1
    );
    let entries: Vec<_> =
        read_segments(&sequence).into_iter().skip(4).flat_map(|segment| segment.entries).collect();
    assert_eq!(entries, [entry("a", 2), entry("b", 1)]);
}

/// A call may end between the segment that makes the entry void and its last step.
#[test]
fn a_repeated_void_gives_an_entry_to_a_commit_that_took_the_version_meanwhile() {
    // Given a void entry, and a later commit with its version that has no entry,
    let (sequence, log) = (MemoryStore::default(), MemoryStore::default());
    let mut sequencer = Sequencer::new(MemoryStore::HOST.pause);
    append(&sequence, &mut sequencer, "1", vec![entry("a", 1)]);
    let void = |sequencer: &mut Sequencer| {
        let named = named_entry(1, entry("a", 1));
        block_on(sequencer.void(&sequence, &log, named, "v", Timestamp::UNIX_EPOCH)).unwrap();
    };
    void(&mut sequencer);
    block_on(log.append(&commit(&entry("a", 1).stream, 1), None)).unwrap();
    // when the call is repeated, also at another sequencer,
    void(&mut sequencer);
    void(&mut Sequencer::new(MemoryStore::HOST.pause));
    // then the commit has one entry.
    let segments = read_segments(&sequence).into_iter().skip(1);
    let entries: Vec<_> = segments.flat_map(|segment| segment.entries).collect();
    assert_eq!(entries, [entry("a", 1)]);
}

proptest! {
    /// Each of four sequencers may lag, crash, or get a batch that another one has appended.
    /// `$all` is dense and complete, and each stream in it is in the order of versions. Every
    /// reader gets the same order, from any beginning.
    #[test]
    fn all_is_final_and_complete_and_in_the_order_of_versions(
        streams in prop::collection::vec(1..6_u64, 1..6),
        draws in prop::collection::vec(any::<u8>(), 64..128),
    ) {
        let mut draws = draws.into_iter().cycle();
        let mut draw = |below: usize| usize::from(draws.next().unwrap_or(0)) % below;
        let store = MemoryStore::default();
        let mut records: Vec<_> = streams.iter().enumerate()
            .flat_map(|(stream, versions)| (1..=*versions).map(move |version| entry(&stream.to_string(), version)))
            .collect();
        // Records of different items may be swapped within a short distance.
        for place in 1..records.len() {
            if draw(3) == 0 {
                records.swap(place - 1, place);
            }
        }
        let mut sequencers: Vec<_> = (0..4).map(|_| Sequencer::new(MemoryStore::HOST.pause)).collect();
        let mut place = 0;
        while place < records.len() {
            let end = records.len().min(place + 1 + draw(4));
            // Lambda redelivers a batch with an earlier beginning, or to another instance.
            let begin = place.saturating_sub(draw(3));
            for _ in 0..=draw(2) {
                let who = draw(4);
                if draw(4) == 0 {
                    sequencers[who] = Sequencer::new(MemoryStore::HOST.pause);
                }
                append(&store, &mut sequencers[who], &format!("{begin}-{end}"), records[begin..end].to_vec());
            }
            place = end;
        }
        let read = read_segments(&store);
        prop_assert!(read.iter().enumerate().all(|(place, segment)| segment.number == place as u64 + 1));
        let whole = apply_entries(&read, &mut BTreeMap::new());
        let named: BTreeSet<_> = read.iter().flat_map(|segment| &segment.entries).collect();
        prop_assert_eq!(named, records.iter().collect(), "each record has an entry of its own");
        let mut sorted = records.clone();
        sorted.sort();
        let mut found = whole.clone();
        found.sort();
        prop_assert_eq!(found, sorted, "each version of each stream, once");
        for middle in 0..=read.len() {
            let mut positions = BTreeMap::new();
            let mut parts = apply_entries(&read[..middle], &mut positions);
            parts.extend(apply_entries(&read[middle..], &mut positions));
            prop_assert_eq!(&parts, &whole);
        }
    }
}
