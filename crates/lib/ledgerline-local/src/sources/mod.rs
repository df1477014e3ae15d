//! The sources other than HTTP that invoke functions: streams, queues and rules, with the failure
//! handling of Lambda's event source mappings.

pub(crate) mod invocation;
pub(crate) mod kinesis_shards;
pub(crate) mod on_failure;
pub(crate) mod queue;
pub(crate) mod stream;

use std::collections::HashSet;

use serde_json::Value;

/// The items of a batch that a function reported as failed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reported {
    /// No item.
    None,
    /// These items.
    Some(HashSet<String>),
    /// All items, because the answer cannot be read or names an item that was not sent.
    All,
}

/// Reads a partial batch response as Lambda does: an empty answer is a success, and an empty,
/// missing or unknown identifier fails the whole batch. Source: the developer guide, "Reporting
/// batch item failures", for streams and for SQS alike.
pub(crate) fn read_failures(answer: &[u8], sent: &HashSet<&str>) -> Reported {
    let Ok(answer) = serde_json::from_slice::<Value>(answer) else { return Reported::All };
    if answer["batchItemFailures"].is_null() {
        return Reported::None;
    }
    let Some(failures) = answer["batchItemFailures"].as_array() else { return Reported::All };
    if failures.is_empty() {
        return Reported::None;
    }
    let mut failed = HashSet::new();
    for failure in failures {
        match failure["itemIdentifier"].as_str() {
            Some(id) if sent.contains(id) => failed.insert(id.to_owned()),
            _ => return Reported::All,
        };
    }
    Reported::Some(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partial_batch_responses_are_read_as_lambda_reads_them() {
        let sent = HashSet::from(["1", "2"]);
        for success in
            ["null", "{}", r#"{"batchItemFailures":null}"#, r#"{"batchItemFailures":[]}"#]
        {
            assert_eq!(read_failures(success.as_bytes(), &sent), Reported::None, "{success}");
        }
        let one = read_failures(br#"{"batchItemFailures":[{"itemIdentifier":"2"}]}"#, &sent);
        assert_eq!(one, Reported::Some(HashSet::from(["2".into()])));
        for all in [
            "no json",
            r#"{"batchItemFailures":[{"itemIdentifier":""}]}"#,
            r#"{"batchItemFailures":[{"itemIdentifier":null}]}"#,
            r#"{"batchItemFailures":[{"itemIdentifier":"3"}]}"#,
            r#"{"batchItemFailures":[{"itemIdentifier":"1"},{}]}"#,
        ] {
            assert_eq!(read_failures(all.as_bytes(), &sent), Reported::All, "{all}");
        }
    }
}
