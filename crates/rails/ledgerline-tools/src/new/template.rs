//! Where something new stands in `template.yaml`, and the alarms that it comes with.

use anyhow::{Context, Result};

pub(super) const TEMPLATE: &str = "template.yaml";

/// What the headings of an application's part of the template begin with, and those of its sections.
const PART: &str = "  # === ";
const SECTION: &str = "  # --- ";

/// The template with one more line in the list that follows the line `after`, in its alphabetical place. The list ends with the
/// first line that does not begin like that.
pub(super) fn with_listed(template: &str, after: &str, begins: &str, line: &str) -> Result<String> {
    let new = format!("{begins}{line}");
    let mut lines: Vec<&str> = template.lines().collect();
    let before = lines.iter().position(|line| *line == after);
    let first =
        1 + before.with_context(|| format!("template.yaml does not have the line {}", after.trim()))?;
    let listed = lines[first..].iter().take_while(|line| line.starts_with(begins));
    let place = first + listed.take_while(|line| **line < new.as_str()).count();
    lines.insert(place, &new);
    Ok(lines.join("\n") + "\n")
}

/// The template with one more section in the part of the application, in its alphabetical place, as the part is among the
/// others.
pub(super) fn with_section(template: &str, application: &str, section: &str) -> Result<String> {
    let heading = |line: &str, begins: &str| {
        let heading = line.strip_prefix(begins)?;
        Some(heading.trim_end_matches(['-', '=']).trim_end().to_owned())
    };
    let title = section.lines().find_map(|line| heading(line, SECTION)).unwrap_or_default();
    let lines: Vec<&str> = template.lines().collect();
    let parts = || lines.iter().enumerate().filter_map(|(place, line)| Some((place, heading(line, PART)?)));
    let outputs = lines.iter().position(|line| *line == "Outputs:");
    let end = outputs.context("template.yaml has no Outputs")?;
    let next = parts().find(|(_, name)| name.as_str() > application).map_or(end, |(place, _)| place);
    let mut new = String::new();
    let place = match parts().find(|(_, name)| name == application) {
        None => {
            let line = format!("{PART}{application} ");
            new = format!("{line}{}\n\n", "=".repeat(114_usize.saturating_sub(line.len())));
            next
        }
        Some((start, _)) => {
            let end = parts().find(|(place, _)| *place > start).map_or(end, |(place, _)| place);
            let sections = (start..end).filter_map(|place| Some((place, heading(lines[place], SECTION)?)));
            let mut later = sections.filter(|(_, name)| *name > title).map(|(place, _)| place);
            later.next().unwrap_or(end)
        }
    };
    let (before, after) = lines.split_at(place);
    Ok(format!("{}\n{new}{section}{}\n", before.join("\n"), after.join("\n")))
}

// --- Alarms -----------------------------------------------------------------------------------------------------

pub(super) struct Alarm {
    pub(super) id: String,
    pub(super) description: String,
    /// The heading in the runbook.
    pub(super) entry: &'static str,
    /// Namespace and name.
    pub(super) metric: &'static str,
    pub(super) dimensions: Vec<(&'static str, String)>,
    pub(super) statistic: &'static str,
    pub(super) threshold: u32,
    /// Minutes in a row.
    pub(super) minutes: u32,
}

pub(super) fn alarm(alarm: &Alarm) -> String {
    let (namespace, metric) = alarm.metric.rsplit_once('/').unwrap_or_default();
    let dimensions: Vec<_> =
        alarm.dimensions.iter().map(|(name, value)| format!("{{ Name: {name}, Value: {value} }}")).collect();
    let Alarm { id, description, entry, statistic, threshold, minutes, .. } = alarm;
    format!(
        "  {id}:
    Type: AWS::CloudWatch::Alarm
    Properties: {{ AlarmDescription: !Sub \"{description} See ${{RunbookUrl}}#{entry}\", Namespace: {namespace}, MetricName: {metric},
      Dimensions: [{}], Statistic: {statistic}, Period: 60, EvaluationPeriods: {minutes}, Threshold: {threshold},
      ComparisonOperator: GreaterThanThreshold, TreatMissingData: notBreaching, AlarmActions: [!Ref AlarmTopic], OKActions: [!Ref AlarmTopic] }}

",
        dimensions.join(", ")
    )
}

/// The alarms of the fanout.
pub(super) fn fanout_alarms() -> String {
    let dimensions = || vec![("FunctionName", "!Ref FanoutFunction".to_owned())];
    let undelivered = alarm(&Alarm {
        id: "FanoutUndelivered".into(),
        description: "What the fanout gave up could not be put into its dead-letter queue.".into(),
        entry: "undelivered-dead-letters",
        metric: "AWS/Lambda/DestinationDeliveryFailures",
        dimensions: dimensions(),
        statistic: "Sum",
        threshold: 0,
        minutes: 1,
    });
    let age = alarm(&Alarm {
        id: "FanoutIteratorAge".into(),
        description: "The fanout is more than a minute behind the log.".into(),
        entry: "iterator-age",
        metric: "AWS/Lambda/IteratorAge",
        dimensions: dimensions(),
        statistic: "Maximum",
        threshold: 60_000,
        minutes: 3,
    });
    let letters = dead_letters("Fanout", "The fanout set commits aside.");
    function_alarms("Fanout", "The fanout") + &undelivered + &age + &letters
}

pub(super) fn function_alarms(function: &str, what: &str) -> String {
    [
        ("Errors", "fails or runs out of time.", "function-errors", "AWS/Lambda/Errors"),
        ("Throttles", "is throttled.", "function-throttles", "AWS/Lambda/Throttles"),
    ]
    .map(|(suffix, happens, entry, metric)| {
        alarm(&Alarm {
            id: format!("{function}{suffix}"),
            description: format!("{what} {happens}"),
            entry,
            metric,
            dimensions: vec![("FunctionName", format!("!Ref {function}Function"))],
            statistic: "Sum",
            threshold: 0,
            minutes: 1,
        })
    })
    .concat()
}

pub(super) fn dead_letters(name: &str, description: &str) -> String {
    alarm(&Alarm {
        id: format!("{name}DeadLetterQueueNotEmpty"),
        description: description.to_owned(),
        entry: "dead-letters",
        metric: "AWS/SQS/ApproximateNumberOfMessagesVisible",
        dimensions: vec![("QueueName", format!("!GetAtt {name}DeadLetterQueue.QueueName"))],
        statistic: "Maximum",
        threshold: 0,
        minutes: 1,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_stands_in_its_alphabetical_place_in_the_part_of_its_application() {
        let base = "Resources:\n  # --- The event store ---\n\n  A:\n\n";
        let part = |name: &str| {
            let line = format!("{PART}{name} ");
            format!("{line}{}\n\n", "=".repeat(114 - line.len()))
        };
        let section = |name: &str| format!("  # --- {name} ---\n\n  {name}:\n\n");
        let template = |sections: &[&str]| format!("{base}{}Outputs:\n  X:\n", sections.concat());
        let (depot, yard) = (part("depot"), part("yard"));
        let one = template(&[&depot, &section("Fills"), &section("Sites")]);
        for (application, name, expected) in [
            ("depot", "Levels", vec![&*depot, &section("Fills"), &section("Levels"), &section("Sites")]),
            ("depot", "Tanks", vec![&*depot, &section("Fills"), &section("Sites"), &section("Tanks")]),
            (
                "yard",
                "Fences",
                vec![&*depot, &section("Fills"), &section("Sites"), &yard, &section("Fences")],
            ),
            (
                "barn",
                "Doors",
                vec![&*part("barn"), &section("Doors"), &depot, &section("Fills"), &section("Sites")],
            ),
        ] {
            assert_eq!(with_section(&one, application, &section(name)).unwrap(), template(&expected));
        }
        let first = with_section(&template(&[]), "yard", &section("Fences")).unwrap();
        assert_eq!(first, template(&[&yard, &section("Fences")]));
    }

    #[test]
    fn a_line_of_a_list_in_the_template_stands_in_its_alphabetical_place() {
        let list = |lines: &[&str]| format!("a\nqueues: |\n{}z\n", lines.concat());
        for (line, expected) in [
            ("a", ["  a\n", "  b\n", "  d\n"]),
            ("c", ["  b\n", "  c\n", "  d\n"]),
            ("e", ["  b\n", "  d\n", "  e\n"]),
        ] {
            let listed = with_listed(&list(&["  b\n", "  d\n"]), "queues: |", "  ", line).unwrap();
            assert_eq!(listed, list(&expected));
        }
        assert_eq!(with_listed(&list(&[]), "queues: |", "  ", "a").unwrap(), list(&["  a\n"]));
    }
}
