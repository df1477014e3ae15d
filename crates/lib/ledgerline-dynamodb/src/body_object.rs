//! A body object: consecutive commits of one stream, as the gzip of JSON lines. The attribute `body`
//! of their items has its name.

use std::fmt;

use ledgerline::{AppendError, Commit, StreamId};
use sha2::{Digest, Sha256};

use crate::payload;

/// The most commits of a body object.
const MAX_COMMITS: usize = 1_000;
/// The most bytes of its lines. The events of a commit have 4 MB, and so has its state. In a line,
/// each quote has a backslash.
const MAX_LINES_BYTES: usize = 5 * payload::MAX_BYTES;
/// The hexadecimal digits of 128 bits: no two objects of a stream share a name.
const HASH_DIGITS: usize = 32;

/// The name of a body object in its stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BodyName {
    /// The version of its first commit.
    pub(crate) first: u64,
    last: u64,
    hash: String,
}

impl fmt::Display for BodyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { first, last, hash } = self;
        write!(f, "{first}-{last}-{hash}")
    }
}

impl BodyName {
    /// The bytes of a name whose versions have few digits.
    pub(crate) const TEXT_BYTES: usize = HASH_DIGITS + 8;

    /// Reads the name of an object that has this version.
    pub(crate) fn parse(name: &str, version: u64) -> Option<Self> {
        let mut parts = name.splitn(3, '-');
        let (first, last) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let name = Self { first, last, hash: parts.next()?.to_owned() };
        (first..=last).contains(&version).then_some(name)
    }

    /// Returns the key of the object.
    pub(crate) fn key(&self, stream: &StreamId) -> String {
        format!("bodies/{stream}/{self}.jsonl.gz")
    }
}

/// Returns the first digits of the SHA-256 of an object.
fn hash(object: &[u8]) -> String {
    let mut digits: String =
        Sha256::digest(object).iter().map(|byte| format!("{byte:02x}")).collect();
    digits.truncate(HASH_DIGITS);
    digits
}

/// The most bytes of text in an object of an archive, unless one commit has more. A reader of one
/// commit reads its whole object.
const PART_BYTES: usize = 256 * 1024;

/// Splits commits without states into those of one object each.
pub(crate) fn split(mut commits: &[Commit]) -> impl Iterator<Item = &[Commit]> {
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |commit: &&Commit| {
            bytes += payload::text_bytes(commit);
            bytes <= PART_BYTES
        };
        let most = commits.iter().take(MAX_COMMITS).take_while(fits).count().max(1);
        let part = commits.split_off(..most.min(commits.len()))?;
        (!part.is_empty()).then_some(part)
    })
}

/// Checks that an object can have this commit: a reader accepts no larger one.
///
/// # Errors
/// When the events have more bytes than a reader accepts, or the state has.
pub(crate) fn check_size(commit: &Commit) -> Result<(), AppendError> {
    let state = commit.state.as_ref().map_or(0, |state| state.data.len());
    let events = commit.events.iter().map(|event| event.data.len()).sum::<usize>();
    let (bytes, limit) = (events.max(state), payload::MAX_BYTES);
    if bytes > limit { Err(AppendError::TooLarge { bytes, limit }) } else { Ok(()) }
}

/// Returns the object of these commits, which follow each other in their stream, and its name.
pub(crate) fn encode(commits: &[Commit]) -> (BodyName, Vec<u8>) {
    let mut lines = String::new();
    for commit in commits {
        // Names, numbers and texts always serialize.
        lines.push_str(&serde_json::to_string(commit).unwrap_or_default());
        lines.push('\n');
    }
    let object = payload::gzip(&lines);
    let version = |commit: Option<&Commit>| commit.map_or(0, |commit| commit.version);
    let (first, last) = (version(commits.first()), version(commits.last()));
    (BodyName { first, last, hash: hash(&object) }, object)
}

/// Reads the commits of the object with this name.
///
/// # Errors
/// The damage, without the content of the object (rule 14).
pub(crate) fn decode(
    stream: &StreamId,
    name: &BodyName,
    object: &[u8],
) -> Result<Vec<Commit>, &'static str> {
    if hash(object) != name.hash {
        return Err("it has another hash");
    }
    if name.last - name.first >= MAX_COMMITS as u64 {
        return Err("it has too many commits");
    }
    let lines = payload::decompress(object, &mut { MAX_LINES_BYTES });
    let lines = lines.ok_or("it is no gzip of a text of at most 20 MB")?;
    let commits = lines.lines().map(serde_json::from_str).collect::<Result<Vec<Commit>, _>>();
    let commits = commits.map_err(|_| "a line is no commit")?;
    let versions = commits.iter().map(|commit| commit.version);
    if !versions.eq(name.first..=name.last) {
        return Err("it has other versions");
    }
    if commits.iter().any(|commit| commit.stream != *stream) {
        return Err("it has a commit of another stream");
    }
    Ok(commits)
}

#[cfg(test)]
mod tests {
    use ledgerline::{RecordedState, contract::commit};

    use super::*;

    fn stream() -> StreamId {
        StreamId::new("tank", "north").unwrap()
    }

    fn commits() -> Vec<Commit> {
        let commits = (3..=5).map(|version| {
            let mut commit = commit(&stream(), version);
            commit.events[0].data = r#"{"amount":1.0,"note":"\n"}"#.into();
            commit.state = Some(RecordedState { schema: 1, data: r#"{"level":1.0}"#.into() });
            commit
        });
        commits.collect()
    }

    #[test]
    fn an_object_is_read_as_it_was_written() {
        let (name, object) = encode(&commits());
        assert_eq!(decode(&stream(), &name, &object).unwrap(), commits());
        let text = name.to_string();
        assert!(text.starts_with("3-5-") && text.len() == 4 + HASH_DIGITS, "{text}");
        assert_eq!(name.key(&stream()), format!("bodies/tank-north/{text}.jsonl.gz"));
        for (version, read) in [(2, None), (3, Some(name.clone())), (5, Some(name)), (6, None)] {
            assert_eq!(BodyName::parse(&text, version), read);
        }
        assert!(["", "3", "3-5", "x-5-abc"].iter().all(|name| BodyName::parse(name, 3).is_none()));
    }

    /// The object is a storage format. A change that fails this test makes stored commits
    /// unreadable.
    #[test]
    fn a_line_is_a_commit_in_the_format_of_the_queues_with_its_state() {
        let (_, object) = encode(&commits()[..1]);
        let line = payload::decompress(&object, &mut { payload::MAX_BYTES }).unwrap();
        assert_eq!(
            line,
            concat!(
                r#"{"stream":"tank-north","version":3,"events":[{"type":"Happened","schema":1,"data":"{\"amount\":1.0,\"note\":\"\\n\"}"}],"#,
                r#""state":{"schema":1,"data":"{\"level\":1.0}"},"command":"command-3","at":"2026-11-21T09:30:00.123456789Z","meta":{}}"#,
                "\n",
            )
        );
    }

    #[test]
    fn a_damaged_object_is_refused_with_the_damage() {
        let (name, object) = encode(&commits());
        let encode_lines = |lines: &str, last| {
            let object = payload::gzip(lines);
            (BodyName { first: 3, last, hash: hash(&object) }, object)
        };
        let lines = payload::decompress(&object, &mut { payload::MAX_BYTES }).unwrap();
        let replace = |from: &str, to: &str| encode_lines(&lines.replace(from, to), 5);
        let mut forged = name.clone();
        forged.hash = hash(b"{}");
        for ((name, object), damage) in [
            ((name.clone(), object[..object.len() - 1].to_vec()), "it has another hash"),
            ((forged, b"{}".to_vec()), "it is no gzip of a text of at most 20 MB"),
            (
                encode_lines(&" ".repeat(MAX_LINES_BYTES + 1), 5),
                "it is no gzip of a text of at most 20 MB",
            ),
            (encode_lines("{}\n", 5), "a line is no commit"),
            (encode_lines(&lines, 4), "it has other versions"),
            (encode_lines(&lines, 3 + MAX_COMMITS as u64), "it has too many commits"),
            (replace("tank-north", "tank-south"), "it has a commit of another stream"),
        ] {
            assert_eq!(decode(&stream(), &name, &object).unwrap_err(), damage);
        }
    }

    #[test]
    fn an_object_of_an_archive_has_a_quarter_of_a_megabyte() {
        let sizes = |texts: &[usize]| -> Vec<_> {
            let commit = |text: &usize| {
                let mut commit = commits().remove(0);
                (commit.events[0].data, commit.state) = (" ".repeat(*text), None);
                commit
            };
            let commits: Vec<_> = texts.iter().map(commit).collect();
            split(&commits).map(<[Commit]>::len).collect()
        };
        assert_eq!(sizes(&[]), [0; 0]);
        assert_eq!(sizes(&[1; 1_001]), [1_000, 1]);
        assert_eq!(sizes(&[PART_BYTES - 1, 1, 1]), [2, 1]);
        assert_eq!(sizes(&[1, PART_BYTES + 1, 1]), [1, 1, 1]);
    }

    #[test]
    fn commits_beyond_the_limit_of_readers_are_refused() {
        let mut large = commits();
        let limit = payload::MAX_BYTES;
        // Each quote is two characters in a line.
        large.truncate(1);
        let largest = "\"".repeat(limit);
        large[0].events[0].data.clone_from(&largest);
        large[0].state = Some(RecordedState { schema: 1, data: largest });
        check_size(&large[0]).unwrap();
        let (name, object) = encode(&large);
        assert_eq!(decode(&stream(), &name, &object).unwrap(), large);
        for events in [true, false] {
            let mut larger = large.clone();
            let state = larger[0].state.as_mut().map(|state| &mut state.data);
            let data = if events { Some(&mut larger[0].events[0].data) } else { state };
            data.unwrap().push('x');
            let refused = check_size(&larger[0]);
            assert!(
                matches!(refused, Err(AppendError::TooLarge { bytes, limit: l }) if bytes == limit + 1 && l == limit)
            );
        }
    }
}
