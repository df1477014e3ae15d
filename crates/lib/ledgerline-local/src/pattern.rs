//! The pattern language of EventBridge, as rules of buses and filters of stream mappings use it.
//!
//! Source: the EventBridge user guide, "Comparison operators for use in event patterns", and the
//! README of AWS's Event Ruler. `tests/patterns.json` has cases that were recorded on AWS.

mod condition;
mod parser;

use anyhow::{Result, anyhow};
use serde_json::Value;

use ledgerline_sam::template::FilterCriteria;

use self::condition::Condition;

/// The patterns of a mapping. Without patterns, every record passes. Otherwise, a record must match
/// one of them.
#[derive(Debug)]
pub(crate) struct Filters(Vec<Pattern>);

impl Filters {
    pub(crate) fn parse(criteria: &FilterCriteria) -> Result<Self> {
        let patterns = criteria.filters.iter().map(|filter| {
            Pattern::parse(&filter.pattern)
                .map_err(|reason| anyhow!("the pattern {} is not valid: {reason}", filter.pattern))
        });
        Ok(Self(patterns.collect::<Result<_>>()?))
    }

    pub(crate) fn pass(&self, record: &Value) -> bool {
        self.0.is_empty() || self.0.iter().any(|pattern| pattern.matches(record))
    }
}

/// A pattern. An event matches if all fields of one alternative match.
#[derive(Debug, Clone)]
pub(crate) struct Pattern {
    alternatives: Vec<Vec<Field>>,
}

/// A field of a pattern.
#[derive(Debug, Clone)]
struct Field {
    /// The names of the field and of the objects around it, with dots between them.
    path: String,
    /// The conditions, of which a value must meet one.
    conditions: Vec<Condition>,
}

/// A value of an event that is neither an object nor an array.
#[derive(Debug)]
struct Leaf<'a> {
    path: String,
    value: &'a Value,
    elements: Vec<Element>,
}

/// An element of an array, by the number of the array in its event.
#[derive(Debug, Clone, Copy)]
struct Element {
    array: usize,
    index: usize,
}

impl Pattern {
    /// Reads a pattern.
    ///
    /// # Errors
    /// The reason for which EventBridge refuses the pattern.
    pub(crate) fn parse(pattern: &str) -> Result<Self, String> {
        parser::parse(pattern)
    }

    pub(crate) fn matches(&self, event: &Value) -> bool {
        self.alternatives.iter().any(|fields| {
            let mut leaves = Leaves { fields, arrays: 0, found: Vec::new() };
            leaves.collect("", event, &[]);
            choose(fields, &leaves.found, &[])
        })
    }
}

/// Finds the leaves of an event at the paths of a pattern's fields.
struct Leaves<'a> {
    fields: &'a [Field],
    /// The number of arrays so far.
    arrays: usize,
    found: Vec<Leaf<'a>>,
}

impl<'a> Leaves<'a> {
    fn collect(&mut self, path: &str, value: &'a Value, elements: &[Element]) {
        if let Some(fields) = value.as_object() {
            for (name, value) in fields {
                let path = join(path, name);
                let is_wanted = |field: &Field| {
                    let rest = field.path.strip_prefix(&path);
                    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
                };
                if self.fields.iter().any(is_wanted) {
                    self.collect(&path, value, elements);
                }
            }
        } else if let Some(values) = value.as_array() {
            let array = self.arrays;
            self.arrays += 1;
            for (index, value) in values.iter().enumerate() {
                let element = Element { array, index };
                self.collect(path, value, &[elements, &[element]].concat());
            }
        } else {
            let elements = elements.to_vec();
            self.found.push(Leaf { path: path.to_owned(), value, elements });
        }
    }
}

/// Adds a name to a path.
fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// Whether each field has a leaf that meets one of its conditions, and all these leaves are in the
/// same elements of the arrays around them. `chosen` has the elements of the preceding fields.
fn choose(fields: &[Field], leaves: &[Leaf<'_>], chosen: &[Element]) -> bool {
    let Some((field, rest)) = fields.split_first() else { return true };
    let mut at_path = leaves.iter().filter(|leaf| leaf.path == field.path).peekable();
    if at_path.peek().is_none() {
        let may_be_absent =
            field.conditions.iter().any(|condition| matches!(condition, Condition::Exists(false)));
        return may_be_absent && choose(rest, leaves, chosen);
    }
    at_path.any(|leaf| {
        let is_elsewhere = |element: &Element| {
            chosen.iter().any(|other| other.array == element.array && other.index != element.index)
        };
        !leaf.elements.iter().any(is_elsewhere)
            && field.conditions.iter().any(|condition| condition.is_met(leaf.value))
            && choose(rest, leaves, &[chosen, &leaf.elements].concat())
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// AWS's answer to a pattern and an event: `match`, `no match` or `refused`.
    fn answer(pattern: &Value, event: &Value) -> &'static str {
        let text =
            |value: &Value| value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
        let event = serde_json::from_str(&text(event)).unwrap();
        match Pattern::parse(&text(pattern)).map(|pattern| pattern.matches(&event)) {
            Ok(true) => "match",
            Ok(false) => "no match",
            Err(_) => "refused",
        }
    }

    #[test]
    fn patterns_are_read_and_matched_as_aws_does() {
        let cases = include_str!("../tests/patterns.json");
        let cases: Value = serde_json::from_str(cases).unwrap();
        let cases = cases["cases"].as_array().unwrap();
        assert_eq!(cases.len(), 150);
        let differs = |case: &&Value| answer(&case["pattern"], &case["event"]) != case["expected"];
        assert_eq!(cases.iter().filter(differs).collect::<Vec<_>>(), [&Value::Null; 0]);
    }

    /// Cases of the documentation, beside the recorded ones.
    #[test]
    fn patterns_of_the_documentation_are_matched() {
        let two = json!({ "a": [{ "b": 1, "c": 2 }, { "b": 3, "c": 4 }], "d.e": { "f": "x" } });
        for (pattern, event, expected) in [
            (json!({ "a": { "b": [1], "c": [2] } }), &two, "match"),
            (json!({ "a": { "b": [1], "c": [4] } }), &two, "no match"),
            (json!({ "a": { "b": [1] }, "d": { "e": { "f": ["x"] } } }), &two, "match"),
            (json!({ "$or": [{ "a": { "b": [9] } }, { "d.e.f": ["x"] }] }), &two, "match"),
            (
                json!({ "a": { "b": [9] }, "$or": [{ "x": [1] }, { "d.e.f": ["x"] }] }),
                &two,
                "no match",
            ),
            (json!({ "a": [{ "exists": true }] }), &two, "no match"),
            (json!({ "a": [{ "exists": false }] }), &two, "match"),
            (json!({ "a": [{ "wildcard": "x\\*y*" }] }), &json!({ "a": "x*yz" }), "match"),
            (json!({ "a": [{ "wildcard": "x\\*y*" }] }), &json!({ "a": "xzyz" }), "no match"),
            (json!({ "a": [{ "wildcard": "x\\y" }] }), &two, "refused"),
            (json!({ "a": [{ "numeric": [">", 5, "<", 5] }] }), &two, "refused"),
            (json!({ "a": [{ "numeric": ["<=", 5, ">", 1] }] }), &two, "refused"),
            (json!({ "a": [{ "numeric": [">=", -2.5, "<", 1] }] }), &json!({ "a": -2.5 }), "match"),
            (json!({ "a": [{ "anything-but": [1, "x"] }] }), &two, "refused"),
            (json!({ "a": [{ "anything-but": [] }] }), &two, "refused"),
            (json!({ "a": [{ "prefix": "x", "suffix": "y" }] }), &two, "refused"),
            (json!({ "a": [[1]] }), &two, "refused"),
            (json!({ "a": {} }), &two, "refused"),
            (json!({}), &two, "refused"),
            (json!([]), &two, "refused"),
            (json!({ "a": [{ "cidr": "10.0.0.0/33" }] }), &two, "refused"),
            (json!({ "a": [{ "cidr": "0.0.0.0/0" }] }), &json!({ "a": "::1" }), "no match"),
            (json!({ "a": [{ "cidr": "10.1.2.3/32" }] }), &json!({ "a": "10.1.2.3" }), "match"),
        ] {
            assert_eq!(answer(&pattern, event), expected, "{pattern} for {event}");
        }
    }
}
