//! The formula of an alarm: its metrics, its expression, and the comparison with its threshold.

use std::collections::BTreeMap;

use serde_json::Value;

/// A metric that an alarm monitors.
#[derive(Debug)]
pub(crate) struct Metric {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) dimensions: BTreeMap<String, String>,
    pub(crate) statistic: String,
    /// The seconds that one datapoint covers.
    pub(crate) period: i64,
}

impl Metric {
    fn of(metric: &Value, statistic: &Value, period: &Value) -> Self {
        let text =
            |value: &Value| value.as_str().unwrap_or_else(|| panic!("no text: {value}")).to_owned();
        let dimensions = metric["Dimensions"].as_array().into_iter().flatten();
        Self {
            namespace: text(&metric["Namespace"]),
            name: text(&metric["MetricName"]),
            dimensions: dimensions.map(|one| (text(&one["Name"]), text(&one["Value"]))).collect(),
            statistic: text(statistic),
            period: period.as_i64().unwrap(),
        }
    }

    /// Returns the datapoint of the values of one period; `None` if there are none.
    pub(crate) fn datapoint(&self, values: &[f64]) -> Option<f64> {
        if values.is_empty() {
            return None;
        }
        match self.statistic.as_str() {
            "Sum" => Some(values.iter().sum()),
            "Maximum" => values.iter().copied().reduce(f64::max),
            other => panic!("the statistic {other} is not understood"),
        }
    }
}

/// Returns the metrics of an alarm, each with the id by which the expression names it.
pub(crate) fn metrics(alarm: &Value) -> Vec<(String, Metric)> {
    let Some(parts) = alarm["Metrics"].as_array() else {
        return vec![(String::new(), Metric::of(alarm, &alarm["Statistic"], &alarm["Period"]))];
    };
    let stats = parts.iter().filter(|part| part["MetricStat"].is_object());
    stats
        .map(|part| {
            let stat = &part["MetricStat"];
            (
                part["Id"].as_str().unwrap().to_owned(),
                Metric::of(&stat["Metric"], &stat["Stat"], &stat["Period"]),
            )
        })
        .collect()
}

/// Whether an alarm rings on the datapoints of its metrics.
///
/// An alarm that wants several periods in a row is evaluated on one period, as if its data
/// repeated: the acted-out faults last until something repairs them, and no test waits for minutes.
pub(crate) fn rings(alarm: &Value, datapoints: &BTreeMap<String, Option<f64>>) -> bool {
    let periods = alarm["EvaluationPeriods"].as_u64().unwrap();
    let needed = alarm["DatapointsToAlarm"].as_u64().unwrap_or(periods);
    assert!((1..=periods).contains(&needed), "of {periods} periods, {needed} never breach");
    let parts = alarm["Metrics"].as_array().into_iter().flatten();
    let mut returned = parts.filter(|part| part["ReturnData"] != false);
    let value = match (returned.next(), returned.next()) {
        (None, _) => datapoints[""],
        (Some(part), None) => match part["Expression"].as_str() {
            Some(expression) => evaluated(expression, datapoints),
            None => datapoints[part["Id"].as_str().unwrap()],
        },
        (Some(_), Some(_)) => panic!("an alarm is on one value"),
    };
    let Some(value) = value else { return alarm["TreatMissingData"] == "breaching" };
    let threshold = alarm["Threshold"].as_f64().unwrap();
    match alarm["ComparisonOperator"].as_str().unwrap() {
        "GreaterThanThreshold" => value > threshold,
        "GreaterThanOrEqualToThreshold" => value >= threshold,
        "LessThanThreshold" => value < threshold,
        "LessThanOrEqualToThreshold" => value <= threshold,
        other => panic!("the comparison {other} is not understood"),
    }
}

/// Returns the value of a metric math expression, whose terms have one kind of operator between
/// them. Returns `None` if a term has no datapoint.
fn evaluated(expression: &str, datapoints: &BTreeMap<String, Option<f64>>) -> Option<f64> {
    let words: Vec<_> = expression.split_whitespace().collect();
    let term = |word: &str| match (word.parse::<f64>(), datapoints.get(word)) {
        (Ok(number), _) => Some(number),
        (Err(_), Some(datapoint)) => *datapoint,
        // No account with quotas is behind the local stack.
        (Err(_), None) if word.starts_with("SERVICE_QUOTA(") => None,
        (Err(_), None) => panic!("the term {word} of {expression} is no metric"),
    };
    let operators: Vec<_> = words.iter().skip(1).step_by(2).collect();
    assert!(operators.windows(2).all(|pair| pair[0] == pair[1]), "{expression} mixes operators");
    let terms: Option<Vec<_>> = words.iter().step_by(2).map(|word| term(word)).collect();
    let value = terms?.into_iter().reduce(|sum, next| match operators[0] {
        &"+" => sum + next,
        &"-" => sum - next,
        &"*" => sum * next,
        &"/" => sum / next,
        other => panic!("the operator {other} of {expression} is not understood"),
    });
    // CloudWatch has no datapoint for a division by zero.
    value.filter(|value| value.is_finite())
}

mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_expression_without_one_of_its_datapoints_has_no_value() {
        let datapoints = [("a", Some(3.0)), ("b", Some(4.0)), ("zero", Some(0.0)), ("none", None)];
        let datapoints = datapoints.map(|(id, value)| (id.to_owned(), value)).into();
        for (expression, expected) in [
            ("a", Some(3.0)),
            ("a + b + 1", Some(8.0)),
            ("a / b", Some(0.75)),
            ("a / zero", None),
            ("a + none", None),
            ("a / SERVICE_QUOTA(a)", None),
        ] {
            assert_eq!(evaluated(expression, &datapoints), expected, "{expression}");
        }
    }

    #[test]
    fn the_comparison_decides_whether_a_value_at_the_threshold_breaches() {
        let rings_at = |comparison: &str, value: Option<f64>| {
            let alarm = json!({
                "EvaluationPeriods": 3, "Threshold": 10, "ComparisonOperator": comparison,
                "TreatMissingData": "notBreaching",
            });
            rings(&alarm, &BTreeMap::from([(String::new(), value)]))
        };
        let rings_at = |comparison| {
            [None, Some(9.0), Some(10.0), Some(11.0)].map(|value| rings_at(comparison, value))
        };
        assert_eq!(rings_at("GreaterThanThreshold"), [false, false, false, true]);
        assert_eq!(rings_at("GreaterThanOrEqualToThreshold"), [false, false, true, true]);
    }
}
