//! The runbook of a new workspace: the page `docs/runbook.md` of ledgerline's own repository, which
//! the starter embeds, without that repository's applications.
//!
//! Two comments of the page mark the parts that belong to an application. The last comment of the
//! page pairs each of its example names with a name of the starter.

use anyhow::{Context, Result};

/// The path of the runbook in a workspace.
pub(super) const RUNBOOK: &str = "docs/runbook.md";

/// The comments around a part that a new workspace does not get.
const BEGINS: &str = "<!-- only here -->";
const ENDS: &str = "<!-- end -->";
/// The beginning of the comment with one pair of names in each line.
const NAMES: &str = "<!-- in a new workspace:\n";

/// Returns the text with the names of the starter. A link to another page becomes the name of that
/// page, because a new workspace has no other page.
pub(super) fn for_new_workspace(page: &str) -> Result<String> {
    let (page, names) = page.split_once(NAMES).context("the runbook pairs no names")?;
    let mut parts = page.split(BEGINS);
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (_, shared) = part.split_once(ENDS).context("a part of the runbook has no end")?;
        // A comment on a line of its own leaves no line behind.
        let is_line = text.ends_with('\n');
        text.push_str(shared.strip_prefix('\n').filter(|_| is_line).unwrap_or(shared));
    }
    for pair in names.lines().take_while(|line| *line != "-->") {
        let (ours, theirs) = pair.split_once(" = ").with_context(|| pair.to_owned())?;
        text = text.replace(ours, theirs);
    }
    Ok(format!("{}\n", without_links(&text).trim_end()))
}

/// Replaces links to pages. Links to headings of the same page stay.
fn without_links(text: &str) -> String {
    let mut parts = text.split("](");
    let mut linked = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let target = part.split_once(')').filter(|(target, _)| !target.starts_with('#'));
        match (target, linked.rfind('[')) {
            (Some((target, rest)), Some(at)) => {
                let label = linked.split_off(at).split_off(1);
                let page = target.split('#').next().unwrap_or_default();
                if label == page {
                    linked.push_str(&format!("`docs/{page}` in Ledgerline's repository"));
                } else {
                    linked.push_str(&label);
                }
                linked.push_str(rest);
            }
            _ => linked.push_str(&format!("]({part}")),
        }
    }
    linked
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_links_and_applications_of_this_repository_are_replaced() {
        let page = "Read [order.md](order.md#void) of `Balances`, an [outage](a.md), [b](#b).\n\
            <!-- only here -->\n## Mails\n\n[mails.md](mails.md)\n<!-- end -->\n\n## B\n\n\
            Keep it<!-- only here -->, `Mails`<!-- end -->.\n\n\
            <!-- in a new workspace:\nBalances = StockCards\n-->\n";
        assert_eq!(
            for_new_workspace(page).unwrap(),
            "Read `docs/order.md` in Ledgerline's repository of `StockCards`, an outage, [b](#b).\n\
             \n## B\n\nKeep it.\n"
        );
        assert!(for_new_workspace("<!-- only here -->").is_err());
    }

    /// A name of an application that is neither marked nor paired would be in every workspace.
    #[test]
    fn the_runbook_of_a_new_workspace_has_no_name_of_this_repository() {
        let page = super::super::starter::file(RUNBOOK).unwrap();
        let text = for_new_workspace(page).unwrap();
        let names = page.split_once(NAMES).unwrap().1;
        let ours = names.lines().filter_map(|pair| pair.split_once(" = ")).map(|pair| pair.0);
        for word in ours.chain(["<!--", ".md)", ".md#"]) {
            assert!(!text.contains(word), "{word}");
        }
    }
}
