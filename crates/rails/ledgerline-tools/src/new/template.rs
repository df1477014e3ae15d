//! Where something new stands in `template.yaml`.

use anyhow::{Context, Result, bail};

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

/// The loops of a new workspace, each with no name in its list.
const LOOPS: &str = text!("loops.yaml");

/// The section of the template that the loops are in.
const ALIKE: &str = "  # --- What is alike -";

/// The template with one more name in the list of a loop, in its alphabetical place. A loop that is not there yet, or that went
/// when its list became empty, is laid down: no tool takes an empty list.
pub(super) fn with_name(template: &str, looped: &str, name: &str) -> Result<String> {
    let key = format!("  Fn::ForEach::{looped}:");
    if !template.lines().any(|line| line == key) {
        let blocks = LOOPS.split("\n\n");
        let block = blocks.into_iter().find(|block| block.lines().any(|line| line == key));
        let block = block.with_context(|| format!("there is no loop {looped}"))?.trim_end();
        let start = template.find(ALIKE).with_context(|| format!("template.yaml has no {}", ALIKE.trim()))?;
        let rest = &template[start + ALIKE.len()..];
        let end = [SECTION, PART, "Outputs:"].iter().filter_map(|next| rest.find(&format!("\n{next}"))).min();
        let place = start + ALIKE.len() + end.context("template.yaml has no Outputs")?;
        let (before, after) = template.split_at(place);
        return with_name(&format!("{before}{block}\n{after}"), looped, name);
    }
    let mut lines: Vec<String> = template.lines().map(ToOwned::to_owned).collect();
    // The key, the identifier, the list.
    let first = lines.iter().position(|line| *line == key).unwrap_or_default() + 2;
    let item = |line: &String| {
        let item = line.strip_prefix("    - - ").or_else(|| line.strip_prefix("      - "))?;
        Some(item.trim().to_owned())
    };
    let mut names: Vec<_> = lines[first..].iter().map_while(item).collect();
    if names.is_empty() && lines.get(first).is_none_or(|line| line.trim() != "- []") {
        bail!(
            "the list of Fn::ForEach::{looped} in template.yaml does not have one name a line: write it so"
        );
    }
    let listed = names.len().max(1);
    names.push(name.to_owned());
    names.sort_unstable();
    let list = names.iter().enumerate().map(|(place, name)| match place {
        0 => format!("    - - {name}"),
        _ => format!("      - {name}"),
    });
    lines.splice(first..first + listed, list);
    Ok(lines.join("\n") + "\n")
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

    /// Loops and lists are what people edit most: what is laid down in them must be as if somebody had written it there.
    #[test]
    fn a_name_stands_in_its_alphabetical_place_in_the_list_of_a_loop() {
        let queues = |names: &str| {
            format!("  Fn::ForEach::Queues:\n    - Consumer\n{names}    - ${{Consumer}}Queue: {{}}\n")
        };
        let template = |names: &str| {
            format!("Resources:\n{ALIKE}\n\n{}\n  # === depot ===\n\nOutputs:\n", queues(names))
        };
        for (name, expected) in [
            ("A", "    - - A\n      - B\n      - D\n"),
            ("C", "    - - B\n      - C\n      - D\n"),
            ("E", "    - - B\n      - D\n      - E\n"),
        ] {
            let named = with_name(&template("    - - B\n      - D\n"), "Queues", name).unwrap();
            assert_eq!(named, template(expected));
        }
        assert!(with_name(&template("    - - B\n"), "Windows", "A").is_err());
        for others in ["    - [B, D]\n", "    # Two.\n    - - B\n"] {
            assert!(with_name(&template(others), "Queues", "A").is_err(), "{others}");
        }
    }

    #[test]
    fn a_loop_is_laid_down_with_its_first_name_at_the_end_of_what_is_alike() {
        let before = format!("Resources:\n{ALIKE}\n\n  # === depot ===\n\nOutputs:\n");
        let after = with_name(&before, "Queues", "Fills").unwrap();
        let after = with_name(&after, "Commands", "tank").unwrap();
        assert!(
            after
                .contains("  Fn::ForEach::Queues:\n    - Consumer\n    - - Fills\n    - ${Consumer}Queue:\n")
        );
        let order = ["What is alike", "Queues of commits", "Functions that take the commands", "=== depot"];
        let places: Vec<_> = order.map(|text| after.find(text).unwrap()).to_vec();
        assert!(places.is_sorted(), "{after}");
        assert!(after.contains(" } } }\n\n  # === depot"), "{after}");
    }

    /// What a reader has to read more for one more view: its section, its name in the lists of two or three loops, and two lines of the
    /// fanout about a queue.
    #[test]
    fn a_projector_costs_at_most_25_lines() {
        for (section, elsewhere) in [
            (include_str!("../../new/state-projector.yaml.txt"), 2),
            (include_str!("../../new/log-projector.yaml.txt"), 3 + 2),
        ] {
            let lines = section.lines().filter(|line| !line.trim().is_empty()).count();
            assert!(lines + elsewhere <= 25, "{lines} and {elsewhere}");
        }
    }

    /// What stands in the template of the workspace in which the rails are developed, after one text and before another.
    fn of_this_workspace(after: &str, before: &str) -> String {
        let ours = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../template.yaml");
        let ours = std::fs::read_to_string(ours).unwrap();
        let (_, rest) = ours.split_once(after).unwrap();
        rest.split_once(before).unwrap().0.to_owned()
    }

    /// Where the rails are developed: the order of everything is the one that a new subscription brings with it, but for the subscriptions in it.
    #[test]
    fn the_order_of_this_workspace_is_that_of_a_new_one() {
        let order = of_ours(text!("order.yaml"));
        let ours = of_this_workspace("  # --- One order of everything", "  # --- Operators -");
        let lines = ours.lines().filter(|line| !line.contains("SubscriptionFunction"));
        assert!(lines.eq(order.split_once("  # --- One order of everything").unwrap().1.lines()));
    }

    /// A text for a new workspace, with the names of this one.
    fn of_ours(text: &str) -> String {
        text.replace("{{scope}}", "ledgerline").replace("{{namespace}}", "Ledgerline/${AWS::StackName}")
    }

    /// Where the rails are developed: what operators need is what a new workspace gets by its command, but for what follows the log.
    #[test]
    fn what_operators_need_in_this_workspace_is_that_of_a_new_one() {
        let operators = of_ours(text!("operators.yaml"));
        let ours = of_this_workspace("  # --- Operators -", "  # --- Watching -");
        let is_follower = |line: &str| {
            let table = line.strip_prefix("                  - !GetAtt ");
            line.contains("Function ${")
                || table.is_some_and(|table| !["CommitsTable.Arn", "SequenceTable.Arn"].contains(&table))
        };
        let lines = ours.lines().filter(|line| !is_follower(line));
        assert!(lines.eq(operators.split_once("  # --- Operators -").unwrap().1.lines()));
    }

    /// Where the rails are developed: the loops of the template there are those of a new workspace, with other names in their lists. One
    /// whose list would be empty is not there.
    #[test]
    fn the_loops_of_this_workspace_are_those_of_a_new_one() {
        let ours = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../template.yaml");
        let ours = std::fs::read_to_string(ours).unwrap();
        let mut known = 0;
        for block in LOOPS.split("\n\n") {
            let (before, body) = block.split_once("    - []\n").unwrap();
            let name = before.lines().find(|line| line.starts_with("  Fn::ForEach::")).unwrap();
            if ours.contains(name) {
                known += 1;
                assert!(ours.contains(before) && ours.contains(body.trim_end()), "{block}");
            }
        }
        assert_eq!(known, ours.matches("\n  Fn::ForEach::").count(), "each loop is known");
    }
}
