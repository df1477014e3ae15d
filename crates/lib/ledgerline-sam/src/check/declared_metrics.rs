//! Compares alarms with the metrics that functions declare.

use ledgerline::manifest::Manifests;
use serde_json::Value;

use crate::{
    lookup::{binary, list, logical_id, resources},
    template::Source,
};

/// Finds metrics of the application without an alarm, and alarms on metrics of the application that
/// no function emits.
pub(super) fn problems(source: &Source, manifests: &Manifests) -> Vec<String> {
    let template = source.json();
    let own = &template["Globals"]["Function"]["Environment"]["Variables"]["METRICS_NAMESPACE"];
    let emitted =
        resources(&template, &["AWS::Serverless::Function"]).flat_map(|(id, function)| {
            let manifest = manifests.get(binary(function)).into_iter();
            manifest.flat_map(|manifest| &manifest.metrics).map(move |metric| (id, &**metric))
        });
    let alarms = resources(&template, &["AWS::CloudWatch::Alarm"]);
    let alarms = alarms.map(|(id, alarm)| (id, &alarm["Properties"]));
    let alarms: Vec<_> = alarms.filter(|(_, alarm)| alarm["Namespace"] == *own).collect();
    let emitted: Vec<_> = emitted.collect();
    let missing =
        emitted.iter().filter(|it| !alarms.iter().any(|(_, alarm)| metric(alarm) == **it));
    let missing = missing.map(|(id, name)| {
        let place = source.place(&["Resources", id]);
        format!("{place}: rule 11: no alarm monitors {name} of Function={id}")
    });
    let surplus = alarms.iter().filter(|(_, alarm)| !emitted.contains(&metric(alarm)));
    let surplus = surplus.map(|(id, alarm)| {
        let place = source.place(&["Resources", id, "Properties", "MetricName"]);
        format!(
            "{place}: rule 11: {id}: no function emits {} with these dimensions",
            alarm["MetricName"]
        )
    });
    missing.chain(surplus).collect()
}

/// The function that an alarm monitors, and the name of the metric.
fn metric(alarm: &Value) -> (&str, &str) {
    let function = list(&alarm["Dimensions"]).first().and_then(|it| logical_id(&it["Value"]));
    (function.unwrap_or_default(), alarm["MetricName"].as_str().unwrap_or_default())
}
