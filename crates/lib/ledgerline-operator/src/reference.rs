//! Checks that docs/reference/ledger.md is the help of the tool, in one page.

use std::{fmt::Write as _, path::Path};

use clap::CommandFactory;

/// Adds the help of a command and of its subcommands. The options of the whole tool are only in the
/// help of the tool.
fn add(page: &mut String, command: &clap::Command, parent: &str) {
    let name = format!("{parent}{}", command.get_name());
    if name == "ledger" {
        page.push_str("# The tool `ledger`\n\n");
        page.push_str(
            "`ledger --help` prints this text, and `ledger SUBCOMMAND --help` its parts.\n",
        );
        page.push_str("[The runbook](../runbook.md) says when to use which.\n\n");
    } else {
        writeln!(page, "## {name}\n").unwrap();
    }
    let is_hidden = |arg: &clap::Arg| {
        arg.get_id() == "help" || (arg.is_global_set() && command.get_name() != "ledger")
    };
    let shown = command.clone().mut_args(|arg| if is_hidden(&arg) { arg.hide(true) } else { arg });
    let help = shown.term_width(100).render_long_help().to_string();
    let lines = help.trim().lines().map(str::trim_end).collect::<Vec<_>>();
    writeln!(page, "```text\n{}\n```\n", lines.join("\n")).unwrap();
    for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
        add(page, sub, &format!("{name} "));
    }
}

/// `UPDATE_REFERENCE=1 cargo test -p ledgerline-operator reference` writes the page.
#[test]
fn the_page_is_the_help_of_the_tool() {
    let mut command = super::Ledger::command();
    command.build();
    let mut page = String::new();
    add(&mut page, &command, "");
    let page = page.trim_end().to_owned() + "\n";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/reference/ledger.md");
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let known = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        page == known,
        "docs/reference/ledger.md is not the help of the tool: \
         UPDATE_REFERENCE=1 cargo test -p ledgerline-operator reference"
    );
}
