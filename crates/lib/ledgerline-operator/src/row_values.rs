//! The comparison of a view's rows with the fold of the log by the view's function.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{BuildHasher, RandomState},
    time::Duration,
};

use anyhow::Result;
use clap::Args;
use jiff::{SignedDuration, Timestamp};
use ledgerline::{
    LogTable, StreamId,
    changes::{Change, Fields, Key},
};
use ledgerline_dynamodb::Head;
use serde_json::{Map, Value, json};

use crate::{
    Output, Stack,
    deployment::{Deployment, is_denied},
    price::READS,
    reconciliation::{SHOWN, YOUNGER},
    subscribers::{find, subscribers},
    view_folds::{Folds, UNKNOWN, Versions, ViewFolds, fold_row},
};

/// The number of streams that are compared together.
const STREAMS: usize = 50;
/// The number of comparisons after the first, each of rows whose streams have changed.
const RETRIES: usize = 5;
/// The pause before each of them.
const PAUSE: Duration = Duration::from_millis(500);

/// The reason for a row of a sample that differs from the fold of one stream.
const OTHERS: &str = "other streams may write these rows; add --all to compare them";
/// The reason for a row that several streams write in another way than by adding.
const UNORDERED: &str =
    "the order of the streams that write these rows matters, and the log has none";
/// The reason for a row to which a stream may add that cannot be folded.
const INCOMPLETE: &str = "a stream that cannot be folded may write these rows";
/// The reason for a stream without a row.
const YOUNG: &str = "the view has no row, and its commits may be in transit";

/// The options of a comparison of values.
#[derive(Debug, Args)]
pub(crate) struct ValuesArgs {
    /// Also compare the rows of this view with the rows that its deployed function would write. It
    /// is the logical id of the function, or its beginning: Balances. Needs OperatorPolicy.
    #[arg(long, value_name = "VIEW")]
    values: Option<String>,
    /// Compare the rows of this many streams, chosen by chance.
    #[arg(long, value_name = "N", default_value_t = 100, requires = "values")]
    sample: usize,
    /// Compare the rows of all streams, including rows that several streams write.
    #[arg(long, requires = "values", conflicts_with = "sample")]
    all: bool,
}

/// The result of a comparison.
#[derive(Default)]
struct Report {
    rows: usize,
    differences: Vec<Value>,
    busy: Vec<Value>,
    /// The numbers of rows or streams that were not compared, by reason.
    not_compared: BTreeMap<String, usize>,
    /// Whether there is a stream that the function cannot fold.
    has_unfolded: bool,
}

impl Report {
    fn count_not_compared(&mut self, reason: &str) {
        *self.not_compared.entry(reason.to_owned()).or_default() += 1;
    }
}

/// Compares the rows of the requested view, prints the differences, and returns whether there is
/// none, and the function can fold each stream.
pub(crate) async fn run(
    deployment: &Deployment,
    stack: &Stack,
    options: &ValuesArgs,
    younger: Option<u64>,
    out: Output,
) -> Result<bool> {
    let Some(view) = &options.values else { return Ok(true) };
    let subscribers = subscribers(deployment, stack).await?;
    let subscriber = find(&subscribers, view)?;
    let until =
        Timestamp::now() - SignedDuration::from_secs(i64::try_from(younger.unwrap_or(YOUNGER))?);
    let busy = out.busy("comparing the rows with the log");
    let initial_units = deployment.units.total();
    let mut heads = deployment.log()?.heads(deployment.parts()).await?;
    heads.retain(|stream, _| subscriber.compared.takes(stream));
    if !options.all {
        heads = sample(heads, options.sample);
    }
    let mut report = Report::default();
    let mut reads = 0.0;
    match ViewFolds::new(deployment, subscriber) {
        Err(reason) => _ = report.not_compared.insert(reason.to_owned(), heads.len()),
        Ok(view) => {
            let comparison =
                Comparison { deployment, view, heads: &heads, until, all: options.all };
            if let Err(error) = comparison.run(&mut report).await {
                if !is_denied(&error) {
                    return Err(error);
                }
                let answer =
                    json!({ "what": "unknown", "who": subscriber.compared.id, "reason": UNKNOWN });
                out.line_or_note(&answer, || format!("\n{}: {UNKNOWN}", subscriber.compared.id));
                return Ok(false);
            }
            reads += comparison.view.reads.get();
        }
    }
    reads += deployment.units.total() - initial_units;
    drop(busy);
    print(&subscriber.compared.id, heads.len(), &report, reads, out);
    Ok(report.differences.is_empty() && !report.has_unfolded)
}

/// Chooses this many streams by chance.
fn sample(heads: BTreeMap<StreamId, Head>, number: usize) -> BTreeMap<StreamId, Head> {
    let chance = RandomState::new();
    let mut heads: Vec<_> = heads.into_iter().collect();
    heads.sort_by_cached_key(|(stream, _)| chance.hash_one(stream));
    heads.into_iter().take(number).collect()
}

/// The input of a comparison.
struct Comparison<'a> {
    deployment: &'a Deployment,
    view: ViewFolds<'a>,
    heads: &'a BTreeMap<StreamId, Head>,
    /// The time after which a commit may be in transit.
    until: Timestamp,
    all: bool,
}

/// The rows that streams write, each with the change by each stream.
type Writers<'f> = BTreeMap<&'f Key, Vec<(&'f StreamId, &'f Change)>>;

/// A row that differs from the fold, and its differences.
struct RowDifference {
    key: Key,
    streams: Vec<StreamId>,
    fields: Vec<Value>,
}

impl Comparison<'_> {
    async fn run(&self, report: &mut Report) -> Result<()> {
        let streams: Vec<_> = self.heads.keys().cloned().collect();
        // Any stream may write a row together with any other one.
        let together = if self.all && !self.view.has_own_rows() { usize::MAX } else { STREAMS };
        for streams in streams.chunks(together) {
            self.compare(self.view.begin(streams.iter().cloned()), report).await?;
        }
        Ok(())
    }

    /// Compares the rows of these streams, and again those whose streams change meanwhile.
    async fn compare(&self, mut folds: Folds, report: &mut Report) -> Result<()> {
        let mut open = None::<BTreeSet<Key>>;
        let mut is_complete = true;
        for attempt in 0..=RETRIES {
            if attempt > 0 {
                tokio::time::sleep(PAUSE).await;
            }
            let shown = self.view.versions(folds.keys()).await?;
            let goals = self.goals(&shown, attempt, report);
            for (stream, reason) in self.view.advance(&mut folds, &goals).await? {
                is_complete = false;
                report.has_unfolded = true;
                folds.remove(&stream);
                report.count_not_compared(&reason);
            }
            let writers = writers(&folds, open.as_ref());
            let different = self.find_differences(&writers, report).await?;
            let moved = if different.is_empty() {
                BTreeSet::new()
            } else {
                self.find_moved_streams(&mut folds, &shown).await?
            };
            let mut left = BTreeSet::new();
            for RowDifference { key, streams, fields } in different {
                let own = self.view.has_own_rows() || !self.all;
                let is_open = match own {
                    true => streams.iter().any(|stream| moved.contains(stream)),
                    // A new stream may be in rows, and not yet in an eventually consistent scan.
                    false => attempt == 0 || !moved.is_empty(),
                };
                if is_open && attempt < RETRIES {
                    left.insert(key);
                } else if is_open {
                    report.busy.push(
                        json!({ "what": "busy", "stream": streams[0], "row": row_name(&key) }),
                    );
                } else if self.view.has_own_rows() || self.all && is_complete {
                    report.rows += 1;
                    report.differences.extend(fields);
                } else {
                    report.count_not_compared(if self.all { INCOMPLETE } else { OTHERS });
                }
            }
            if left.is_empty() {
                break;
            }
            open = Some(left);
        }
        Ok(())
    }

    /// Returns the versions up to which streams are folded: those that the view shows. A view of
    /// states that shows nothing of an old stream should show its head.
    fn goals(&self, shown: &Versions, attempt: usize, report: &mut Report) -> Versions {
        let mut goals = shown.clone();
        for (stream, goal) in goals.iter_mut().filter(|(_, goal)| **goal == 0) {
            let head = self.heads.get(stream).filter(|_| self.view.is_state_view());
            match head {
                Some(Head { version, at: Some(at), .. }) if *at <= self.until => *goal = *version,
                Some(_) if attempt == 0 => report.count_not_compared(YOUNG),
                Some(_) | None => {}
            }
        }
        goals
    }

    /// Compares the rows of these writers. Counts the equal ones, and returns the others.
    async fn find_differences(
        &self,
        writers: &Writers<'_>,
        report: &mut Report,
    ) -> Result<Vec<RowDifference>> {
        let keys = writers.keys().map(|key| (*key).clone()).collect();
        let mut stored = self.view.read_rows(&keys).await?;
        let mut different = Vec::new();
        for (key, changes_by_stream) in writers {
            let changes: Vec<_> = changes_by_stream.iter().map(|(_, change)| *change).collect();
            let Some(expected) = fold_row(self.view.keys, key, &changes) else {
                report.count_not_compared(UNORDERED);
                continue;
            };
            let stored = stored.remove(*key).and_then(|row| row.fields);
            let place = json!({ "what": "difference", "stream": changes_by_stream[0].0, "row": row_name(key) });
            let fields = differences(&self.view.keys, &place, expected.as_ref(), stored.as_ref());
            if fields.is_empty() {
                report.rows += 1;
            } else {
                let streams =
                    changes_by_stream.iter().map(|(stream, _)| (*stream).clone()).collect();
                different.push(RowDifference { key: (*key).clone(), streams, fields });
            }
        }
        Ok(different)
    }

    /// Returns the streams whose version in the view differs from these versions: all of them if
    /// reads use another generation. Rows that several streams write may be written by new
    /// streams as well, which are added to the folds.
    async fn find_moved_streams(
        &self,
        folds: &mut Folds,
        shown: &Versions,
    ) -> Result<BTreeSet<StreamId>> {
        if self.view.is_switched().await? {
            return Ok(folds.keys().cloned().collect());
        }
        let latest = self.view.versions(folds.keys()).await?;
        let is_moved = |(stream, version): &(StreamId, u64)| shown.get(stream) != Some(version);
        let mut moved: BTreeSet<_> =
            latest.into_iter().filter(is_moved).map(|(stream, _)| stream).collect();
        if self.all && !self.view.has_own_rows() {
            let heads = self.deployment.log()?.heads(self.deployment.parts()).await?.into_keys();
            let is_new = |stream: &StreamId| {
                !self.heads.contains_key(stream)
                    && !shown.contains_key(stream)
                    && self.view.subscriber.compared.takes(stream)
            };
            let new: Vec<_> = heads.filter(is_new).collect();
            moved.extend(new.iter().cloned());
            folds.extend(self.view.begin(new));
        }
        Ok(moved)
    }
}

/// Returns the rows that these folds touch, or those of them that are open.
fn writers<'f>(folds: &'f Folds, open: Option<&BTreeSet<Key>>) -> Writers<'f> {
    let mut writers = Writers::new();
    for (stream, fold) in folds {
        for (key, change) in fold.changes.iter() {
            if open.is_none_or(|open| open.contains(key)) {
                writers.entry(key).or_default().push((stream, change));
            }
        }
    }
    writers
}

/// Returns the name of a row: its keys.
pub(crate) fn row_name(key: &Key) -> String {
    let (partition, sort) = key;
    format!("{partition} {sort}").trim_end().to_owned()
}

/// Returns `place` with each field that differs. A missing row differs as a whole. The keys are
/// equal, because the row was found by them.
fn differences(
    keys: &LogTable,
    place: &Value,
    expected: Option<&Fields>,
    stored: Option<&Fields>,
) -> Vec<Value> {
    let differ = |field: Value, expected: Value, stored: Value| {
        let mut difference = place.clone();
        difference["field"] = field;
        difference["expected"] = expected;
        difference["stored"] = stored;
        difference
    };
    let (Some(expected), Some(stored)) = (expected, stored) else {
        let whole = |row: Option<&Fields>| row.map_or(Value::Null, |row| json!(row));
        return match (expected, stored) {
            (None, None) => Vec::new(),
            _ => vec![differ(Value::Null, whole(expected), whole(stored))],
        };
    };
    let names: BTreeSet<_> = expected.keys().chain(stored.keys()).collect();
    let names = names.into_iter().filter(|name| ![keys.partition, keys.sort].contains(&&***name));
    let field =
        |row: &Map<String, Value>, name: &String| row.get(name).cloned().unwrap_or_default();
    names
        .map(|name| (name, field(expected, name), field(stored, name)))
        .filter(|(_, expected, stored)| !is_same(expected, stored))
        .map(|(name, expected, stored)| differ(json!(name), expected, stored))
        .collect()
}

/// Whether the database stores one of these values as the other. It stores 1.0 as 1.
fn is_same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => {
            one == other || (one.is_f64() || other.is_f64()) && one.as_f64() == other.as_f64()
        }
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len()
                && one.iter().zip(other).all(|(one, other)| is_same(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            let is_in_other = |(name, value): (&String, &Value)| {
                other.get(name).is_some_and(|other| is_same(value, other))
            };
            one.len() == other.len() && one.iter().all(is_in_other)
        }
        _ => one == other,
    }
}

fn print(who: &str, streams: usize, report: &Report, reads: f64, out: Output) {
    let Report { rows, differences, busy, not_compared, has_unfolded: _ } = report;
    let counts = json!({
        "what": "values", "who": who, "streams": streams, "rows": rows,
        "differences": differences.len(), "busy": busy.len(), "notCompared": not_compared.values().sum::<usize>(), "reads": reads,
    });
    let fields = ["who", "streams", "rows", "differences", "busy", "notCompared"];
    out.note("");
    out.rows(&fields, &[counts]);
    let listed = |fields: &[&str], rows: &[Value]| {
        let shown = if out.json { rows.len() } else { SHOWN.min(rows.len()) };
        if shown > 0 {
            out.note("");
            out.rows(fields, &rows[..shown]);
        }
        if shown < rows.len() {
            out.note(&format!("and {} more: see them with --json", rows.len() - shown));
        }
    };
    listed(&["stream", "row", "field", "expected", "stored"], differences);
    listed(&["what", "stream", "row"], busy);
    let reason = |(reason, count): (&String, &usize)| json!({ "what": "notCompared", "count": count, "reason": reason });
    listed(&["what", "count", "reason"], &not_compared.iter().map(reason).collect::<Vec<_>>());
    out.note(&format!("\nthe rows took {reads:.0} read units, {:.4} US$", reads * READS / 1e6));
    if !busy.is_empty() {
        out.note("busy: the streams of these rows changed at each attempt; run the command again");
    }
    if !differences.is_empty() {
        out.note(
            "expected: the value that the deployed function would write; `ledger rebuild switch` writes it",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: LogTable = LogTable { variable: "", partition: "p", sort: "s" };

    fn fold(changes: &[Value]) -> Option<Option<Value>> {
        let changes: Vec<Change> =
            changes.iter().map(|change| serde_json::from_value(change.clone()).unwrap()).collect();
        let key = ("a".to_owned(), "b".to_owned());
        let row = fold_row(TABLE, &key, &changes.iter().collect::<Vec<_>>())?;
        Some(row.map(|row| json!(row)))
    }

    fn update(set: Value, add: Value) -> Value {
        json!({ "update": { "set": set, "add": add } })
    }

    #[test]
    fn a_row_of_several_streams_is_folded_if_their_order_does_not_matter() {
        let one = update(json!({ "name": "x" }), json!({ "sum": 2 }));
        let other = update(json!({ "size": 1 }), json!({ "sum": 3 }));
        let row = json!({ "p": "a", "s": "b", "name": "x", "size": 1, "sum": 5 });
        assert_eq!(fold(&[one.clone(), other]), Some(Some(row)));
        let row = json!({ "p": "a", "s": "b", "sum": 1 });
        assert_eq!(fold(&[json!({ "put": row })]), Some(Some(row.clone())));
        assert_eq!(fold(&[json!("delete")]), Some(None));
        for other in [
            update(json!({ "name": "y" }), json!({})),
            update(json!({}), json!({ "name": 1 })),
            json!({ "put": row }),
            json!("delete"),
        ] {
            assert_eq!(fold(&[one.clone(), other.clone()]), None, "{other}");
            assert_eq!(fold(&[other.clone(), one.clone()]), None, "{other}");
        }
    }

    #[test]
    fn only_fields_that_the_database_stores_otherwise_differ() {
        let named = |expected: Value, stored: Value| {
            let place = json!({});
            let found = differences(&TABLE, &place, expected.as_object(), stored.as_object());
            found.iter().map(|found| found["field"].clone()).collect::<Vec<_>>()
        };
        let row = json!({ "p": "a", "n": 1.0, "list": [1, { "x": 2.0 }], "none": null });
        let stored = json!({ "p": "$2/a", "n": 1, "list": [1.0, { "x": 2 }] });
        assert_eq!(named(row.clone(), stored), Vec::<Value>::new());
        let stored = json!({ "p": "a", "n": 2, "list": [1, { "x": 3 }], "more": "z" });
        assert_eq!(named(row.clone(), stored), [json!("list"), json!("more"), json!("n")]);
        assert_eq!(named(row.clone(), Value::Null), [Value::Null]);
        assert_eq!(named(Value::Null, row), [Value::Null]);
        assert_eq!(named(Value::Null, Value::Null), Vec::<Value>::new());
    }
}
