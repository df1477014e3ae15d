//! The names in Rust (docs/glossary.md): a verb for what is done, a noun for what it is.
//!
//! Each number is the most occurrences that the test allows. A change that removes some lowers the
//! number, so that no change can add them again.

use std::collections::{BTreeMap, BTreeSet};

use super::{File, files};

/// Names of functions, and how often each may occur: prepositions, pronouns, adverbs, and words
/// that the glossary replaces.
const FUNCTIONS: &[(&str, usize)] = &[
    ("of", 0),
    ("to", 0),
    ("in", 0),
    ("at", 5),
    ("on", 1),
    ("by", 5),
    ("with", 6),
    ("within", 0),
    ("until", 0),
    ("after", 3),
    ("before", 0),
    ("between", 1),
    ("beside", 0),
    ("under", 1),
    ("without", 1),
    ("again", 1),
    ("once", 1),
    ("then", 2),
    ("now", 0),
    ("back", 0),
    ("it", 0),
    ("them", 0),
    ("they", 0),
    ("nothing", 0),
    ("others", 3),
    ("all", 0),
    ("somebody", 0),
    ("nobody", 0),
    ("everybody", 0),
    ("whoever", 0),
    ("tried", 1),
    ("moved", 1),
    ("looked", 0),
    ("goes", 0),
    ("told", 0),
    ("did", 0),
    ("asked", 1),
    ("care", 0),
    ("verdict", 0),
    ("parked", 0),
    ("set_aside", 0),
    ("put_aside", 0),
];

/// The most functions that are named by one participle, such as `listed`.
const PARTICIPLES: usize = 79;
/// Participles that do not end in `ed` or `ing`.
const IRREGULAR: &str =
    " kept held shown written begun taken done left seen said given lost sent made known ";
/// Nouns and verbs that end like a participle.
const NO_PARTICIPLES: &str = " feed need seed speed embed shed hundred beginning string ring ping ";

/// The most functions that are named `of_…`, with three words at most. The names of tests are
/// sentences, and longer.
const OF: usize = 0;

/// Names of types, and how often each may occur.
const TYPES: &[(&str, usize)] = &[
    ("Of", 0),
    ("Care", 0),
    ("Goes", 0),
    ("Looked", 0),
    ("Told", 1),
    ("Then", 1),
    ("After", 0),
    ("Again", 0),
    ("InVain", 0),
    ("Beside", 0),
    ("Letter", 0),
    ("Nothing", 1),
];

/// The most names that several source files of the libraries have, with different contents.
const SHARED_FILE_NAMES: usize = 13;
/// The file names that every package may have.
const COMMON_FILE_NAMES: [&str; 4] = ["lib.rs", "mod.rs", "main.rs", "tests.rs"];

/// A name, and the path of its file.
struct Named {
    name: String,
    path: String,
}

/// Returns the name in a line that declares an item of one of these kinds.
fn declared_name<'l>(line: &'l str, kinds: &[&str]) -> Option<&'l str> {
    let mut rest = line.trim_start();
    while let Some(stripped) = ["pub ", "pub(crate) ", "pub(super) ", "const ", "async "]
        .iter()
        .find_map(|start| rest.strip_prefix(start))
    {
        rest = stripped;
    }
    let rest = kinds.iter().find_map(|kind| rest.strip_prefix(kind))?;
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    Some(&rest[..end])
}

/// Finds the declarations of these kinds. Functions that return a boolean or an event may be named
/// by a participle or a preposition, and are left out.
fn declarations(kinds: &[&str]) -> Vec<Named> {
    let mut found = Vec::new();
    for File { path, text } in files(&[".rs"], &["repository/names.rs"]) {
        let is_exempt = |line: &&str| line.contains("-> bool") || line.contains("-> Event {");
        for line in text.lines().filter(|line| !is_exempt(line)) {
            if let Some(name) = declared_name(line, kinds) {
                found.push(Named { name: name.to_owned(), path: path.clone() });
            }
        }
    }
    found
}

fn assert_at_most(
    most: usize,
    what: &str,
    declarations: &[Named],
    is_meant: impl Fn(&str) -> bool,
) {
    let places: Vec<_> = declarations
        .iter()
        .filter(|named| is_meant(&named.name))
        .map(|named| format!("{} in {}", named.name, named.path))
        .collect();
    let count = places.len();
    assert!(count <= most, "{what}: {count} instead of at most {most}: {places:#?}");
}

#[test]
fn functions_are_named_by_verbs_and_nouns() {
    let functions = declarations(&["fn "]);
    for (word, most) in FUNCTIONS {
        assert_at_most(*most, &format!("functions called `{word}`"), &functions, |name| {
            name == *word
        });
    }
    assert_at_most(OF, "functions called `of_…`", &functions, |name| {
        name.starts_with("of_") && name.matches('_').count() <= 2
    });
    assert_at_most(PARTICIPLES, "functions named by a participle", &functions, |name| {
        let is_in = |list: &str| list.contains(&format!(" {name} "));
        let is_listed = FUNCTIONS.iter().any(|(word, _)| *word == name);
        let is_participle = name.ends_with("ed") || name.ends_with("ing") || is_in(IRREGULAR);
        is_participle && !name.contains('_') && !is_listed && !is_in(NO_PARTICIPLES)
    });
}

#[test]
fn types_are_named_by_nouns_and_a_package_has_one_type_of_options() {
    let types = declarations(&["struct ", "enum ", "trait ", "type "]);
    for (word, most) in TYPES {
        assert_at_most(*most, &format!("types called `{word}`"), &types, |name| name == *word);
    }
    let options: Vec<_> = types.iter().filter(|named| named.name == "Options").collect();
    let package = |path: &str| path.split('/').take(3).collect::<Vec<_>>().join("/");
    let packages: BTreeSet<_> = options.iter().map(|named| package(&named.path)).collect();
    assert_eq!(
        options.len(),
        packages.len(),
        "a package has two types called `Options`: {packages:?}"
    );
}

#[test]
fn no_two_files_of_the_libraries_have_one_name_and_different_contents() {
    let mut texts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for File { path, text } in files(&[".rs"], &[]) {
        let name = path.rsplit('/').next().unwrap_or_default();
        let is_source = path.starts_with("crates/lib/") && path.split('/').nth(3) == Some("src");
        if is_source && !COMMON_FILE_NAMES.contains(&name) {
            texts.entry(name.to_owned()).or_default().insert(text);
        }
    }
    let shared: Vec<_> =
        texts.iter().filter(|(_, texts)| texts.len() > 1).map(|(name, _)| name).collect();
    let count = shared.len();
    assert!(count <= SHARED_FILE_NAMES, "{count} names of several files: {shared:?}");
}
