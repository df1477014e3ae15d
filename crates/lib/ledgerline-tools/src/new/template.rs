//! The texts of a new part in `template.yaml`: copies from the starter, and their places.

use std::path::Path;

use anyhow::{Context, Result};
use ledgerline_sam::generate;

use super::starter;

pub(crate) const TEMPLATE: &str = "template.yaml";

/// The beginning of the heading of an application's part of the template, and the beginning of the
/// headings of its sections.
const PART: &str = "  # === ";
const SECTION: &str = "  # --- ";
/// The column in which each heading ends.
const WIDTH: usize = 114;
/// The line before the clients of operators and readers of events.
pub(super) const CLIENTS: &str = "  # For programs that read the events of all callers.";
/// The heading of the section after these clients.
pub(super) const AFTER_CLIENTS: &str = "  # --- Logs and traces -";

/// Returns the template of the starter with empty generated blocks.
fn ours() -> Result<String> {
    Ok(generate::empty_blocks(starter::file(TEMPLATE)?, Path::new(TEMPLATE))?)
}

/// Returns a section of the starter's template, by its heading.
pub(super) fn section(heading: &str) -> Result<String> {
    part(&format!("{SECTION}{heading} -"), &[SECTION, PART, "Outputs:"])
}

/// Returns a part of the starter's template, from a line that begins with `begins` up to the next
/// line that begins with one of `ends`.
pub(super) fn part(begins: &str, ends: &[&str]) -> Result<String> {
    let template = ours()?;
    let part = starter::cut(&template, begins, ends);
    Ok(part.with_context(|| format!("the starter has no {}", begins.trim()))?.to_owned())
}

/// Returns the starter's template without its application, loops, operators and `$all`.
pub(super) fn without_parts() -> Result<String> {
    let mut template = ours()?;
    let parts = [
        (format!("{SECTION}$all: one order over all streams -"), [SECTION, PART]),
        (format!("{SECTION}Operators -"), [SECTION, PART]),
        (format!("{SECTION}Reconciling -"), [SECTION, PART]),
        ("  # Functions behind the HTTP API: a URL of each".to_owned(), [PART, "Outputs:"]),
        (format!("{PART}{} =", starter::APPLICATION), [PART, "Outputs:"]),
        (CLIENTS.to_owned(), [AFTER_CLIENTS, "Outputs:"]),
        (SCOPES[0].to_owned(), ["          {", "        ]"]),
        (SCOPES[1].to_owned(), ["          {", "        ]"]),
        (AUDIENCES[0].to_owned(), ["                    ", "      "]),
        (AUDIENCES[1].to_owned(), ["                    ", "      "]),
    ];
    for (begins, ends) in parts {
        let part = starter::cut(&template, &begins, &ends);
        let part =
            part.with_context(|| format!("the starter has no {}", begins.trim()))?.to_owned();
        template = template.replacen(&part, "", 1);
    }
    Ok(template)
}

/// The scopes of readers of events and of operators.
pub(super) const SCOPES: [&str; 2] =
    ["          { ScopeName: events,", "          { ScopeName: operate,"];
/// The clients of readers of events and of operators, in the audience of the API.
pub(super) const AUDIENCES: [&str; 2] = [
    "                    !If [HasOwnUsers, !Ref EventsReaderClient,",
    "                    !If [HasOwnUsers, !Ref OperatorClient,",
];

/// Returns the text with headings that end in the same column.
pub(super) fn align_headings(text: &str) -> String {
    let even = |line: &str| {
        let dash = if line.starts_with(PART) { '=' } else { '-' };
        let is_heading = line.starts_with(PART) || line.starts_with(SECTION);
        if !is_heading || !line.ends_with(dash) {
            return format!("{line}\n");
        }
        let heading = line.trim_end_matches(dash);
        format!(
            "{heading}{}\n",
            String::from(dash).repeat(WIDTH.saturating_sub(heading.chars().count()))
        )
    };
    text.lines().map(even).collect()
}

/// Returns the text with one more line in the list after the line `after`, in alphabetical order.
/// The list ends before the first line that is indented less.
pub(super) fn with_listed(text: &str, after: &str, new: &str) -> Result<String> {
    let begins = &new[..new.len() - new.trim_start().len()];
    let mut lines: Vec<&str> = text.lines().collect();
    let before = lines.iter().position(|line| *line == after);
    let first =
        1 + before.with_context(|| format!("it does not have the line `{}`", after.trim()))?;
    let listed = lines[first..].iter().take_while(|line| line.starts_with(begins));
    let place = first + listed.take_while(|line| **line < new).count();
    lines.insert(place, new);
    Ok(lines.join("\n") + "\n")
}

/// Returns the template with one more section in the part of the application. Sections and parts
/// are in alphabetical order.
pub(super) fn with_section(template: &str, application: &str, section: &str) -> Result<String> {
    let heading = |line: &str, begins: &str| {
        let heading = line.strip_prefix(begins)?;
        Some(heading.trim_end_matches(['-', '=']).trim_end().to_owned())
    };
    let title = section.lines().find_map(|line| heading(line, SECTION)).unwrap_or_default();
    let lines: Vec<&str> = template.lines().collect();
    let parts =
        || lines.iter().enumerate().filter_map(|(place, line)| Some((place, heading(line, PART)?)));
    let outputs = lines.iter().position(|line| *line == "Outputs:");
    let end = outputs.context("template.yaml has no Outputs")?;
    let next =
        parts().find(|(_, name)| name.as_str() > application).map_or(end, |(place, _)| place);
    let mut new = String::new();
    let place = match parts().find(|(_, name)| name == application) {
        None => {
            let line = format!("{PART}{application} ");
            new = format!("{line}{}\n\n", "=".repeat(WIDTH.saturating_sub(line.len())));
            next
        }
        Some((start, _)) => {
            let end = parts().find(|(place, _)| *place > start).map_or(end, |(place, _)| place);
            let sections =
                (start..end).filter_map(|place| Some((place, heading(lines[place], SECTION)?)));
            let mut later = sections.filter(|(_, name)| *name > title).map(|(place, _)| place);
            later.next().unwrap_or(end)
        }
    };
    let (before, after) = lines.split_at(place);
    Ok(format!("{}\n{new}{section}{}\n", before.join("\n"), after.join("\n")))
}

/// The heading of the section with the loops.
const LOOPS_HEADING: &str = "  # --- Loops -";

/// Returns the template with this loop. A missing loop is added with an empty list, and `cargo
/// xtask wire` writes the list. A template can lack a loop because linters reject empty lists, so
/// the loop disappears with the last name in its list.
pub(super) fn with_loop(template: &str, loop_name: &str) -> Result<String> {
    let key = format!("  Fn::ForEach::{loop_name}:");
    if template.lines().any(|line| line == key) {
        return Ok(template.to_owned());
    }
    let loops = part(LOOPS_HEADING, &[SECTION, PART])?;
    let mut blocks = loops.split("\n\n");
    let block = blocks.find(|block| block.lines().any(|line| line == key));
    let block = block.with_context(|| format!("there is no loop {loop_name}"))?.trim_end();
    let start = template
        .find(LOOPS_HEADING)
        .with_context(|| format!("template.yaml has no {}", LOOPS_HEADING.trim()))?;
    let rest = &template[start + LOOPS_HEADING.len()..];
    let end =
        [SECTION, PART, "Outputs:"].iter().filter_map(|next| rest.find(&format!("\n{next}"))).min();
    let place = start + LOOPS_HEADING.len() + end.context("template.yaml has no Outputs")?;
    let (before, after) = template.split_at(place);
    Ok(format!("{}\n\n{block}\n{after}", before.trim_end()))
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
        let depot = part("depot");
        let yard = part("yard");
        let one = template(&[&depot, &section("Fills"), &section("Sites")]);
        for (application, name, expected) in [
            (
                "depot",
                "Levels",
                vec![&*depot, &section("Fills"), &section("Levels"), &section("Sites")],
            ),
            (
                "depot",
                "Tanks",
                vec![&*depot, &section("Fills"), &section("Sites"), &section("Tanks")],
            ),
            (
                "yard",
                "Fences",
                vec![&*depot, &section("Fills"), &section("Sites"), &yard, &section("Fences")],
            ),
            (
                "barn",
                "Doors",
                vec![
                    &*part("barn"),
                    &section("Doors"),
                    &depot,
                    &section("Fills"),
                    &section("Sites"),
                ],
            ),
        ] {
            assert_eq!(
                with_section(&one, application, &section(name)).unwrap(),
                template(&expected)
            );
        }
        let first = with_section(&template(&[]), "yard", &section("Fences")).unwrap();
        assert_eq!(first, template(&[&yard, &section("Fences")]));
    }

    #[test]
    fn a_line_of_a_list_in_the_template_stands_in_its_alphabetical_place() {
        let list = |lines: &[&str]| format!("a\nqueues: |\n{}z\n", lines.concat());
        for (line, expected) in [
            ("  a", ["  a\n", "  b\n", "  d\n"]),
            ("  c", ["  b\n", "  c\n", "  d\n"]),
            ("  e", ["  b\n", "  d\n", "  e\n"]),
        ] {
            let listed = with_listed(&list(&["  b\n", "  d\n"]), "queues: |", line).unwrap();
            assert_eq!(listed, list(&expected));
        }
        assert_eq!(with_listed(&list(&[]), "queues: |", "  a").unwrap(), list(&["  a\n"]));
    }

    #[test]
    fn a_loop_is_laid_down_once_at_the_end_of_the_section_of_loops() {
        let before = format!("Resources:\n{LOOPS_HEADING}\n\n  # === depot ===\n\nOutputs:\n");
        let after = with_loop(&before, "Queues").unwrap();
        let after = with_loop(&after, "Commands").unwrap();
        assert_eq!(with_loop(&after, "Queues").unwrap(), after);
        assert!(with_loop(&after, "Windows").is_err());
        let list = "    # <generated Queues>\n    - []\n    # </generated>\n";
        assert!(
            after.contains(&format!("  Fn::ForEach::Queues:\n    - Consumer\n{list}")),
            "{after}"
        );
        let order =
            ["--- Loops", "Queues of commits", "Functions that take the commands", "=== depot"];
        let places: Vec<_> = order.map(|text| after.find(text).unwrap()).to_vec();
        assert!(places.is_sorted(), "{after}");
        assert!(after.contains(" } } }\n\n  # === depot"), "{after}");
        assert!(after.contains("\n\n  # Functions that take the commands"), "{after}");
    }

    /// Each view adds its section to the template. All other lines for the view are generated.
    #[test]
    fn a_projector_costs_at_most_22_lines() {
        for heading in ["Stock cards: a state projector", "Stock journal: a log projector"] {
            let section = section(heading).unwrap();
            let lines = section.lines().filter(|line| !line.trim().is_empty()).count();
            assert!(lines <= 22, "{lines}");
        }
    }

    /// Returns the part of this repository's template between two texts.
    fn load_root(after: &str, before: &str) -> String {
        let ours = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../template.yaml");
        let ours = std::fs::read_to_string(ours).unwrap();
        let (_, rest) = ours.split_once(after).unwrap();
        rest.split_once(before).unwrap().0.to_owned()
    }

    /// In ledgerline's own repository, the section for `$all` is the one that a first subscription
    /// adds to a new workspace. Only the subscriptions in generated blocks differ.
    #[test]
    fn the_section_for_all_is_that_of_a_new_workspace() {
        let order = load_starter(&section("$all: one order over all streams").unwrap());
        let ours = load_root("  # --- $all: one order over all streams", "  # --- Operators -");
        let (_, order) = order.split_once("  # --- $all: one order over all streams").unwrap();
        assert_eq!(by_hand(&ours), by_hand(order));
    }

    /// Returns a text for a new workspace, with the names of this repository.
    fn load_starter(text: &str) -> String {
        text.replace("north-depot/${AWS::StackName}", "Ledgerline/${AWS::StackName}")
            .replace("north-depot/", "ledgerline/")
    }

    /// In ledgerline's own repository, the sections for operators are those that a new workspace
    /// gets with its part for operators. Only the subscribers in generated blocks differ.
    #[test]
    fn the_sections_for_operators_are_those_of_a_new_workspace() {
        let reconciling = section("Reconciling").unwrap();
        let operators = load_starter(&(section("Operators").unwrap() + &reconciling));
        let ours = load_root("  # --- Operators -", "  # --- Monitoring -");
        let (_, operators) = operators.split_once("  # --- Operators -").unwrap();
        assert_eq!(by_hand(&ours), by_hand(operators));
    }

    /// Returns a part of a template without the content of its generated blocks.
    fn by_hand(text: &str) -> String {
        let mut is_generated = false;
        let lines = text.lines().filter(|line| {
            let was = is_generated;
            is_generated =
                line.trim().starts_with("# <generated ") || was && line.trim() != "# </generated>";
            !was
        });
        lines.collect::<Vec<_>>().join("\n")
    }

    /// In ledgerline's own repository, the loops of the template are those of a new workspace, with
    /// other names in their lists. The template has no loop whose list would be empty.
    #[test]
    fn the_loops_are_those_of_a_new_workspace() {
        let ours = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../template.yaml");
        let ours = std::fs::read_to_string(ours).unwrap();
        let mut known = 0;
        let loops = part(LOOPS_HEADING, &[SECTION, PART]).unwrap();
        for block in loops.split("\n\n").filter(|block| block.contains("  Fn::ForEach::")) {
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
