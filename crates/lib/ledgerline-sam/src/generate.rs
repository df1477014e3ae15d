//! Writes the parts of a template that follow from the manifests of its functions.
//!
//! `cargo xtask wire` writes them into generated blocks: between a line `# <generated NAME>` and a
//! line `# </generated>`. The name defines the content of the block:
//!
//! | name | content |
//! |---|---|
//! | `STATE_VIEWS`, `LOG_QUEUES`, `SUBSCRIPTIONS`, `SUBSCRIBERS`, `BUS_EVENTS` | the variable of this name |
//! | `Urls`, `Commands`, `StateViews`, `LogViews`, `Queues`, `Rules` | the list of the loop of this name |
//! | `Pattern` | the pattern of the rule of the bus around it |
//! | `routes` | the events of the function around it, one for each route |
//! | the logical id of a role | the role of a function |
//! | `grants` | statements of the role around it, whose other statements are written by hand |
//! | `Manifests` | the manifests, for the operator's tool |
//!
//! No block is mandatory. The check compares a part that is written by hand with the manifests.

mod application;
mod assembly;
#[cfg(test)]
mod compare;
mod deploy;
mod function;
mod ids;
mod lists;
mod part;
mod role_policy;
mod routes;
mod statements;
mod table;
mod value;
mod write;

use std::path::Path;

use ledgerline::manifest::Manifests;

pub(crate) use self::lists::{invocation_line, names, queue_line, types_in_rules};
pub use self::{
    application::{Application, Extra},
    assembly::template,
    deploy::{Deploy, FILE as DEPLOY},
    ids::lost_ids,
};
use crate::{
    blocks::{Block, blocks, is_role},
    functions::Template,
    manifests::as_metadata,
    template::{Source, TemplateError},
};

/// A template whose blocks follow from the manifests.
#[derive(Debug)]
pub struct Rewrite {
    /// The template.
    pub source: Source,
    /// The line and the name of each block that was stale in the given text.
    pub stale: Vec<(usize, String)>,
}

/// Writes the blocks of a template from the manifests of its functions.
///
/// # Errors
/// With the line, when a block has no end or an unknown name, or when the template cannot be read.
/// Also when a list or the grants of a role would be empty.
pub fn write_blocks(source: &Source, manifests: &Manifests) -> Result<Rewrite, TemplateError> {
    // The variables of the fanout follow from the patterns of rules, and its grants from its
    // variables.
    let is_pattern = |name: &str| name == "Pattern";
    let is_of_roles = |name: &str| name == "grants" || is_role(name);
    let is_other = |name: &str| !is_pattern(name) && !is_of_roles(name);
    let passes: [&dyn Fn(&str) -> bool; 3] = [&is_pattern, &is_other, &is_of_roles];
    let mut rewrite = Rewrite { source: source.clone(), stale: Vec::new() };
    for is_wanted in passes {
        let Rewrite { source, stale } = write_pass(&rewrite.source, manifests, is_wanted)?;
        rewrite.stale.extend(stale);
        rewrite.source = source;
    }
    rewrite.stale.sort_unstable();
    Ok(rewrite)
}

/// Writes the blocks for whose names `is_wanted` is true.
fn write_pass(
    source: &Source,
    manifests: &Manifests,
    is_wanted: impl Fn(&str) -> bool,
) -> Result<Rewrite, TemplateError> {
    let json = source.json();
    let template = Template::new(source, &json, manifests);
    let lines: Vec<_> = source.text().lines().collect();
    let mut stale = Vec::new();
    let mut written = Vec::new();
    // The line of the file for each written line, for messages.
    let mut origins = Vec::new();
    let mut at = 0;
    for Block { name, begins, ends } in blocks(&lines).map_err(|wrong| source.wrong(wrong))? {
        let kept = &lines[at..=begins];
        origins.extend((at..=begins).map(|line| source.origin(line + 1)));
        written.extend(kept.iter().map(|line| (*line).to_owned()));
        let found = &lines[begins + 1..ends];
        let block = match is_wanted(name) {
            false => found.iter().map(|line| (*line).to_owned()).collect(),
            true => {
                let content = content(&template, name, &lines[..=begins], manifests);
                let content = content.map_err(|message| source.wrong((begins + 1, message)))?;
                let line = lines[begins];
                let indent = &line[..line.len() - line.trim_start().len()];
                content.into_iter().map(|line| format!("{indent}{line}")).collect::<Vec<_>>()
            }
        };
        if found != block {
            stale.push((source.origin(begins + 1), name.to_owned()));
        }
        origins
            .extend((0..block.len()).map(|line| source.origin(begins + 2 + line.min(found.len()))));
        written.extend(block);
        at = ends;
    }
    origins.extend((at..lines.len()).map(|line| source.origin(line + 1)));
    written.extend(lines[at..].iter().map(|line| (*line).to_owned()));
    let line_end = if source.text().contains("\r\n") { "\r\n" } else { "\n" };
    let source = source.rewritten(&(written.join(line_end) + line_end), origins)?;
    Ok(Rewrite { source, stale })
}

/// Returns the text of a template with placeholders in its generated blocks. A merge may leave text
/// in a block that is no YAML. `cargo xtask wire` overwrites the blocks anyway.
///
/// # Errors
/// With the line, as those of [`write_blocks`].
pub fn empty_blocks(text: &str, path: &Path) -> Result<String, TemplateError> {
    let lines: Vec<_> = text.lines().collect();
    let wrong = |(line, message)| TemplateError::Wrong { path: path.to_owned(), line, message };
    let mut emptied = Vec::new();
    let mut at = 0;
    for Block { name, begins, ends } in blocks(&lines).map_err(wrong)? {
        emptied.extend(&lines[at..=begins]);
        let line = lines[begins];
        let indent = &line[..line.len() - line.trim_start().len()];
        let is_list = lists::LOOPS.contains(&name);
        emptied.extend(is_list.then_some(if indent.len() == 4 { "    - []" } else { "- []" }));
        at = ends;
    }
    emptied.extend(&lines[at..]);
    Ok(emptied.join("\n") + "\n")
}

/// The lines of a block, without its indentation. `before` are the lines above it.
fn content(
    template: &Template<'_>,
    name: &str,
    before: &[&str],
    manifests: &Manifests,
) -> Result<Vec<String>, String> {
    if let Some(lines) = lists::variable(template, name) {
        return Ok(lists::as_variable(name, &lines));
    }
    if let Some(names) = lists::names(template, name) {
        return lists::as_list(name, &names);
    }
    match name {
        "grants" => statements::statements(template, before),
        "routes" => routes::events(template, before),
        "Pattern" => routes::pattern(template, before),
        "Manifests" => Ok(as_metadata(manifests)),
        _ if let Some(function) = statements::function_of(template, name) => {
            Ok(statements::role(template, name, function))
        }
        _ if is_role(name) => {
            Err(format!("`{name}` is the role of no function: delete its generated block"))
        }
        _ => Err(format!(
            "there is no generated block `{name}`; choose one of: {}, Pattern, routes, grants, Manifests, the id of a role",
            [lists::VARIABLES.as_slice(), lists::LOOPS.as_slice()].concat().join(", ")
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        blocks::{BEGIN, END},
        check,
        manifests::{in_template, read, read_file, to_json},
        tests::{BY_HAND, TANKS},
    };

    fn manifests() -> Manifests {
        read_file(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../ledgerline-tank/template.yaml"))
            .unwrap()
    }

    /// The template of the tanks with one text in place of another.
    fn with(text: &str, other: &str) -> Source {
        assert!(TANKS.text().contains(text), "{text}");
        TANKS.rewritten(&TANKS.text().replacen(text, other, 1), Vec::new()).unwrap()
    }

    /// The number of the first line that contains this text.
    fn line(source: &Source, text: &str) -> usize {
        1 + source.text().lines().position(|line| line.contains(text)).unwrap()
    }

    #[test]
    fn the_blocks_of_the_tanks_match_their_manifests() {
        let rewrite = write_blocks(&TANKS, &manifests()).unwrap();
        assert_eq!(rewrite.stale, []);
        assert_eq!(rewrite.source.text(), TANKS.text());
    }

    #[test]
    fn a_stale_block_is_rewritten_and_named_with_its_line() {
        let blocks = TANKS.text().lines().filter(|line| line.trim().starts_with(BEGIN));
        for block in blocks {
            let stale = with(&format!("{block}\n"), &format!("{block}\n# by hand\n"));
            let rewrite = write_blocks(&stale, &manifests()).unwrap();
            let name = block.trim().trim_start_matches(BEGIN).trim_end_matches('>');
            assert_eq!(rewrite.stale, [(line(&stale, block), name.to_owned())]);
            assert_eq!(rewrite.source.text(), TANKS.text());
        }
    }

    /// The template lacks a line for the queue of the process manager. The check reports the stale
    /// block, but not the lines and the right that follow from it.
    #[test]
    fn a_stale_block_is_one_problem_without_its_consequences() {
        let stale = with("            ${HaulQueue} haul\n", "");
        let place = format!("template.yaml:{}", line(&stale, "<generated LOG_QUEUES>"));
        let found = check::wiring(&stale, &manifests());
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].contains(&place) && found[0].ends_with("run `cargo xtask wire`"),
            "{found:?}"
        );
    }

    #[test]
    fn a_problem_behind_a_stale_block_has_the_line_of_the_file() {
        // Given a block that lacks a line, and a function far below it that lacks a variable,
        let stale = with("            ${HaulQueue} haul\n", "");
        let (before, function) = stale.text().split_once("Takes requests to haul").unwrap();
        let function = function.replacen(" REQUESTS_TABLE: !Ref RequestsTable,", "", 1);
        let slip = TANKS
            .rewritten(&format!("{before}Takes requests to haul{function}"), Vec::new())
            .unwrap();
        // when the template is checked,
        let found = check::wiring(&slip, &manifests());
        // then the problem names the line of the variables in the file.
        let place = format!(
            "template.yaml:{}: HaulCommandsFunction",
            4 + line(&slip, "Takes requests to haul")
        );
        assert!(found.iter().any(|found| found.contains(&place)), "{place}: {found:#?}");
    }

    #[test]
    fn a_block_that_cannot_be_written_is_an_error_with_its_line() {
        for (text, other, expected) in [
            (
                "<generated LogViews>",
                "<generated Views>",
                "there is no generated block `Views`; choose one of: STATE_VIEWS",
            ),
            (
                "<generated HaulRole>",
                "<generated HaulerRole>",
                "`HaulerRole` is the role of no function: delete its generated block",
            ),
            (
                "  FanoutRole:\n",
                "  FanOutRole:\n",
                "`grants` is in `FanOutRole`, which is the role of no function",
            ),
            (
                "          # <generated STATE_VIEWS>\n",
                "          # <generated routes>\n",
                "`routes` is in `FanoutFunction`, which has no route",
            ),
        ] {
            let source =
                BY_HAND.rewritten(&BY_HAND.text().replacen(text, other, 1), Vec::new()).unwrap();
            let error = write_blocks(&source, &manifests()).unwrap_err().to_string();
            assert!(error.contains("template.yaml:") && error.contains(expected), "{error}");
        }
    }

    /// Without its end, a block would overwrite all hand-written text up to the next end.
    #[test]
    fn a_marker_that_is_missing_or_misspelled_is_an_error_with_its_line() {
        let text = TANKS.text();
        let refused = |text: &str| {
            let source = TANKS.rewritten(text, Vec::new()).unwrap();
            write_blocks(&source, &manifests()).unwrap_err().to_string()
        };
        for (at, _) in text.match_indices(END) {
            let begin = text[..at].rfind(BEGIN).unwrap();
            let line = 1 + text[..begin].matches('\n').count();
            let error = refused(&[&text[..at], &text[at + END.len()..]].concat());
            assert!(error.contains(&format!("template.yaml:{line}: ")), "{line}: {error}");
            assert!(error.ends_with("has no end: write `# </generated>` below it"), "{error}");
        }
        for (at, _) in text.match_indices(BEGIN) {
            let end = at + text[at..].find('\n').unwrap();
            let error = refused(&[&text[..at], &text[end..]].concat());
            assert!(
                error.ends_with("`# </generated>` ends no generated block: delete it"),
                "{error}"
            );
        }
        for wrong in [
            "#<generated Queues>",
            "# <Generated Queues>",
            "# < generated Queues>",
            "# <generated Queues> # x",
        ] {
            let error = refused(&text.replacen("# <generated Queues>", wrong, 1));
            assert!(error.contains(&format!("`{wrong}` is not a marker")), "{error}");
        }
    }

    #[test]
    fn a_block_that_is_no_yaml_is_written_anyway() {
        let conflict = "<<<<<<< ours\n    - - A\n=======\n    - - B\n>>>>>>> theirs\n";
        for block in [
            "    # <generated Queues>\n",
            "          # <generated STATE_VIEWS>\n",
            "    # <generated Manifests>\n",
        ] {
            let text = TANKS.text().replacen(block, &format!("{block}{conflict}"), 1);
            assert!(TANKS.rewritten(&text, Vec::new()).is_err(), "{block}");
            let text = empty_blocks(&text, Path::new("template.yaml")).unwrap();
            let rewrite =
                write_blocks(&TANKS.rewritten(&text, Vec::new()).unwrap(), &manifests()).unwrap();
            assert_eq!(rewrite.source.text(), TANKS.text(), "{block}");
        }
    }

    #[test]
    fn a_template_keeps_its_line_ends() {
        let text =
            TANKS.text().replacen("            ${HaulQueue} haul\n", "", 1).replace('\n', "\r\n");
        let rewrite =
            write_blocks(&TANKS.rewritten(&text, Vec::new()).unwrap(), &manifests()).unwrap();
        assert_eq!(rewrite.source.text(), TANKS.text().replace('\n', "\r\n"));
    }

    /// The check reports another value, an invalid manifest, an unknown function, and a misspelled
    /// key.
    #[test]
    fn other_manifests_in_the_metadata_are_a_problem() {
        let by_hand = |text: &str, other: &str| {
            let lines = TANKS.text().lines().filter(|line| !line.trim().starts_with("# <"));
            let lines: String = lines.map(|line| format!("{line}\n")).collect();
            assert!(lines.contains(text), "{text}");
            check::wiring(
                &TANKS.rewritten(&lines.replacen(text, other, 1), Vec::new()).unwrap(),
                &manifests(),
            )
        };
        assert_eq!(by_hand("  Ledgerline:\n", "  Ledgerline:\n"), Vec::<String>::new());
        for (text, other) in [
            ("\"table\":\"LEVELS_TABLE\"", "\"table\":\"STOCK_TABLE\""),
            ("      haul: '{", "      haul: 'garbage"),
            ("      haul: ", "      hauls: "),
            ("    Manifests:\n", "    Manifest:\n"),
        ] {
            let found = by_hand(text, other);
            assert!(
                found.iter().any(|found| found.contains("Metadata.Ledgerline")),
                "{text}: {found:?}"
            );
        }
    }

    #[test]
    fn a_loop_with_an_empty_list_is_refused() {
        let mut manifests = manifests();
        manifests.retain(|_, manifest| {
            !matches!(manifest.source, ledgerline::manifest::Source::States { .. })
        });
        let error = write_blocks(&TANKS, &manifests).unwrap_err().to_string();
        assert!(error.ends_with("belongs in the loop `StateViews`: delete the loop"), "{error}");
    }

    #[test]
    fn manifests_are_read_as_they_were_written() {
        let manifests = manifests();
        assert_eq!(read(&to_json(&manifests)).unwrap(), manifests);
        assert_eq!(in_template(&TANKS.json()).unwrap(), Some(manifests));
    }

    /// Every principal that may deploy to the account can write the template of a stack.
    #[test]
    fn manifests_of_a_stack_are_checked() {
        let json = |manifests: serde_json::Value| serde_json::json!({ "Metadata": { "Ledgerline": { "Manifests": manifests } } });
        assert_eq!(in_template(&serde_json::json!({})).unwrap(), None);
        let schedule = r#"{"source":"schedule","variables":["X"]}"#;
        assert!(in_template(&json(serde_json::json!({ "x": schedule }))).unwrap().is_some());
        for (name, text, expected) in [
            ("x", "{", "the manifest of `x`"),
            (
                "x",
                &schedule.replace("\"X\"", "\"x;y\""),
                "the manifest of `x`: `x;y` is not a valid variable",
            ),
            (
                "x",
                &schedule.replace("source", "sauce"),
                "the manifest of `x`: unknown field `sauce`",
            ),
            ("\u{1b}[2J", schedule, "is not a function name"),
        ] {
            let error = in_template(&json(serde_json::json!({ name: text }))).unwrap_err();
            assert!(format!("{error:#}").contains(expected), "{error:#}");
        }
    }
}
