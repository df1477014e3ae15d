//! The formula of an alarm: its expression, and the comparison with its threshold.

use std::collections::BTreeMap;

use serde_json::Value;

/// The datapoint of each metric of an alarm, by the id in the expression; `None` if it has none.
pub(crate) type Datapoints = BTreeMap<String, Option<f64>>;

/// Returns the datapoint of the values of one period.
pub(crate) fn datapoint(statistic: &str, values: &[f64]) -> Option<f64> {
    match statistic {
        "Sum" => values.iter().copied().reduce(|sum, value| sum + value),
        "Maximum" => values.iter().copied().reduce(f64::max),
        other => panic!("the statistic {other} is not understood"),
    }
}

/// Whether an alarm rings if its returned part has this value in every period: the acted-out faults
/// last, and no test waits for minutes.
pub(crate) fn rings(alarm: &Value, returned: &Value, datapoints: &Datapoints) -> bool {
    let periods = alarm["EvaluationPeriods"].as_u64().unwrap();
    let needed = alarm["DatapointsToAlarm"].as_u64().unwrap_or(periods);
    assert!((1..=periods).contains(&needed), "of {periods} periods, {needed} never breach");
    let value = match returned["Expression"].as_str() {
        Some(expression) => evaluate(expression, datapoints),
        None => datapoints[returned["Id"].as_str().unwrap()],
    };
    let Some(value) = value else { return alarm["TreatMissingData"] == "breaching" };
    let threshold = alarm["Threshold"].as_f64().unwrap();
    match alarm["ComparisonOperator"].as_str().unwrap() {
        "GreaterThanThreshold" => value > threshold,
        "GreaterThanOrEqualToThreshold" => value >= threshold,
        other => panic!("the comparison {other} is not understood"),
    }
}

/// Returns the value of a metric math expression with two terms at most; `None` if a term has no
/// datapoint.
fn evaluate(expression: &str, datapoints: &Datapoints) -> Option<f64> {
    let term = |word: &str| match datapoints.get(word) {
        Some(datapoint) => *datapoint,
        // No account with quotas is behind the local stack.
        None if word.starts_with("SERVICE_QUOTA(") => None,
        None => panic!("the term {word} of {expression} is not a metric"),
    };
    let value = match *expression.split(' ').collect::<Vec<_>>() {
        [one] => term(one)?,
        [one, "+", other] => term(one)? + term(other)?,
        [one, "/", other] => term(one)? / term(other)?,
        _ => panic!("the expression {expression} is not understood"),
    };
    // CloudWatch has no datapoint for a division by zero.
    Some(value).filter(|value| value.is_finite())
}

#[test]
fn a_metric_without_a_datapoint_or_a_value_at_the_threshold_does_not_ring() {
    let alarm = serde_json::json!({
        "EvaluationPeriods": 3, "Threshold": 2, "ComparisonOperator": "GreaterThanThreshold",
    });
    let returned = serde_json::json!({ "Expression": "a / b" });
    let rings = |a, b| {
        let datapoints = [("a", a), ("b", b)].map(|(id, value)| (id.to_owned(), value));
        rings(&alarm, &returned, &datapoints.into())
    };
    assert!(rings(Some(9.0), Some(4.0)));
    for (a, b) in [(Some(8.0), Some(4.0)), (Some(9.0), Some(0.0)), (Some(9.0), None), (None, None)]
    {
        assert!(!rings(a, b), "{a:?} / {b:?}");
    }
}
