//! The list of all texts that users meet: errors, refusals, log lines, help and output.
//!
//! `texts.txt` has every text of the libraries and applications, so that a reader can edit them as
//! one text. `UPDATE_TEXTS=1 cargo test -p xtask --test texts` writes it.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::{collections::BTreeSet, fmt::Write as _, fs, path::Path, process::Command};

use proc_macro2::{TokenStream, TokenTree};

/// Folders with code whose texts no user of Ledgerline meets.
const EXCEPT: [&str; 5] = [
    "/tests/",
    "/examples/",
    "benches/",
    "crates/lib/ledgerline-proofs/",
    "crates/lib/ledgerline-tools/starter/",
];

/// Adds the texts of these tokens, without those of tests and without documentation.
fn texts(tokens: TokenStream, found: &mut BTreeSet<String>) {
    let mut tokens = tokens.into_iter().peekable();
    let mut skip_block = false;
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Punct(punct) if punct.as_char() == '#' => {
                // `#![…]` is an attribute too.
                let _ = tokens.next_if(|token| matches!(token, TokenTree::Punct(_)));
                let Some(TokenTree::Group(attribute)) = tokens.peek() else { continue };
                let attribute = attribute.stream().to_string();
                // `#[error("…")]` has a text; documentation, lints and conditions have none.
                skip_block |= attribute.contains("cfg") && attribute.contains("test");
                if !attribute.starts_with("error") {
                    tokens.next();
                }
            }
            TokenTree::Group(group) => {
                let is_block = group.delimiter() == proc_macro2::Delimiter::Brace;
                if !(skip_block && is_block) {
                    texts(group.stream(), found);
                }
                skip_block &= !is_block;
            }
            TokenTree::Literal(literal) => {
                let literal = literal.to_string();
                // A text has words: at least two spaces between letters.
                let is_text = literal.starts_with('"') && literal.matches(' ').count() > 1;
                if is_text && literal.chars().filter(|c| c.is_alphabetic()).count() > 8 {
                    found.insert(literal.replace("\\\n", ""));
                }
            }
            TokenTree::Ident(_) | TokenTree::Punct(_) => {}
        }
    }
}

/// Returns the list without the files of applications that do not exist.
fn without_deleted_applications(list: &str, root: &Path) -> String {
    let mut is_left = true;
    let lines = list.lines().filter(|line| {
        if !line.starts_with(' ') {
            is_left = !line.starts_with("crates/apps/") || root.join(line).exists();
        }
        is_left
    });
    lines.map(|line| format!("{line}\n")).collect()
}

#[test]
fn the_list_of_texts_is_complete() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let listed =
        Command::new("git").args(["ls-files", "*.rs"]).current_dir(&root).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let mut list = String::new();
    for path in listed.lines().filter(|path| !EXCEPT.iter().any(|except| path.contains(except))) {
        // A file that is deleted and not yet committed is listed too.
        let Ok(source) = fs::read_to_string(root.join(path)) else { continue };
        let is_test = path.ends_with("tests.rs");
        let mut found = BTreeSet::new();
        texts(source.parse().unwrap(), &mut found);
        if !is_test && !found.is_empty() {
            writeln!(list, "{path}").unwrap();
            found.iter().for_each(|text| writeln!(list, "  {text}").unwrap());
        }
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/texts.txt");
    if std::env::var_os("UPDATE_TEXTS").is_some() {
        fs::write(&path, &list).unwrap();
    }
    // An application may be deleted with its folder alone (docs/applications.md).
    let known = fs::read_to_string(&path).unwrap_or_default();
    let known = without_deleted_applications(&known, &root);
    let missing: Vec<_> =
        list.lines().filter(|line| !known.lines().any(|known| known == *line)).collect();
    assert!(
        list == known,
        "texts.txt is not the list: UPDATE_TEXTS=1 cargo test -p xtask --test texts. \
         New: {missing:#?}"
    );
}
