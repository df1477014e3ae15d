//! The queries that the server knows.

use serde_json::{Map, Value};

/// A query that the server does not know.
#[derive(Debug)]
pub(super) struct Invalid;

/// Returns the score of a document for a query; 0 if the document does not match.
pub(super) fn matches(query: &Value, source: &Map<String, Value>) -> Result<f64, Invalid> {
    let (kind, query) = query.as_object().and_then(|query| query.iter().next()).ok_or(Invalid)?;
    match kind.as_str() {
        "match_all" => Ok(1.0),
        "exists" => {
            let field = query["field"].as_str().ok_or(Invalid)?;
            Ok(score(source.get(field).is_some_and(|value| !value.is_null())))
        }
        "term" => {
            let (field, value) =
                query.as_object().and_then(|query| query.iter().next()).ok_or(Invalid)?;
            let found = source.get(field).is_some_and(|found| {
                found == value || found.as_array().is_some_and(|values| values.contains(value))
            });
            Ok(score(found))
        }
        "multi_match" if query["operator"] == "and" && query["type"] == "cross_fields" => {
            let fields = query["fields"].as_array().ok_or(Invalid)?;
            let texts = fields.iter().filter_map(|field| source.get(field.as_str()?));
            let found: Vec<_> = texts.flat_map(words).collect();
            let counts = words(&query["query"]);
            let counts = counts.iter().map(|word| found.iter().filter(|it| *it == word).count());
            let counts: Vec<_> = counts.collect();
            let all = !counts.is_empty() && counts.iter().all(|count| *count > 0);
            let sum = u32::try_from(counts.iter().sum::<usize>()).unwrap_or(u32::MAX);
            Ok(if all { f64::from(sum) } else { 0.0 })
        }
        "bool" => {
            let clauses = |name: &str| query[name].as_array().into_iter().flatten();
            let mut sum = 0.0;
            for (name, adds) in [("must", true), ("filter", false)] {
                for clause in clauses(name) {
                    match matches(clause, source)? {
                        0.0 => return Ok(0.0),
                        score if adds => sum += score,
                        _ => {}
                    }
                }
            }
            for clause in clauses("must_not") {
                if matches(clause, source)? > 0.0 {
                    return Ok(0.0);
                }
            }
            Ok(f64::max(sum, f64::MIN_POSITIVE))
        }
        _ => Err(Invalid),
    }
}

fn score(is_found: bool) -> f64 {
    if is_found { 1.0 } else { 0.0 }
}

/// Returns the words of a text, or of a list of texts, in lower case.
fn words(value: &Value) -> Vec<String> {
    if let Some(values) = value.as_array() {
        return values.iter().flat_map(words).collect();
    }
    let text = value.as_str().unwrap_or_default().to_lowercase();
    let words = text.split(|letter: char| !letter.is_alphanumeric());
    words.filter(|word| !word.is_empty()).map(ToOwned::to_owned).collect()
}
