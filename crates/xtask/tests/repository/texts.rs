//! The list of all texts that users meet: errors, refusals, log lines, help and output.
//!
//! `texts.txt` has every text of three words or more, so that a reader can edit them as one text.
//! `UPDATE_REFERENCE=1 cargo test -p xtask --test repository` writes it.

use std::{collections::BTreeSet, fmt::Write as _};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::{deleted_applications, files, is_up_to_date};

/// Folders with code whose texts no user of Ledgerline meets.
const EXCEPT: [&str; 6] = [
    "/tests/",
    "tests.rs",
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
                let is_block = group.delimiter() == Delimiter::Brace;
                if !(skip_block && is_block) {
                    texts(group.stream(), found);
                }
                skip_block &= !is_block;
            }
            TokenTree::Literal(literal) => {
                let literal = literal.to_string();
                // Names and expressions may have spaces too, but few letters.
                let is_text = literal.starts_with('"') && literal.matches(' ').count() > 1;
                if is_text && literal.chars().filter(|c| c.is_alphabetic()).count() > 8 {
                    found.insert(literal.replace("\\\n", ""));
                }
            }
            TokenTree::Ident(_) | TokenTree::Punct(_) => {}
        }
    }
}

#[test]
fn the_list_of_texts_is_complete() {
    let mut list = String::new();
    for file in files(&[".rs"], &EXCEPT) {
        let mut found = BTreeSet::new();
        texts(file.text.parse().unwrap(), &mut found);
        if !found.is_empty() {
            writeln!(list, "{}", file.path).unwrap();
            found.iter().for_each(|text| writeln!(list, "  {text}").unwrap());
        }
    }
    let deleted = deleted_applications();
    let mut is_left = true;
    is_up_to_date("crates/xtask/tests/repository/texts.txt", &list, |line| {
        if !line.starts_with(' ') {
            is_left = !deleted.iter().any(|folder| line.starts_with(folder));
        }
        is_left
    });
}

#[test]
fn texts_of_tests_and_documentation_are_not_listed() {
    let source = r##"
        //! Not a text of users.
        #[error("the table `{0}` is missing")]
        struct Missing;
        fn f() { bail!("name the stack with --stack"); }
        #[cfg(test)]
        mod tests { const A: &str = "not a text either, really"; }
    "##;
    let mut found = BTreeSet::new();
    texts(source.parse().unwrap(), &mut found);
    let expected = ["\"name the stack with --stack\"", "\"the table `{0}` is missing\""];
    assert_eq!(found.into_iter().collect::<Vec<_>>(), expected);
}
