//! The lengths of lines and the words of this repository (docs/glossary.md).
//!
//! Each number is the most occurrences that the test allows. A change that removes some lowers the
//! number, so that no change can add them again.

use super::{File, files};

/// Lines of Rust over 100 columns: texts that rustfmt does not break.
const LONG_RUST: usize = 515;
/// Lines of Markdown over 120 columns, without tables and code.
const LONG_MARKDOWN: usize = 0;
/// Lines over 120 columns of the YAML from which templates are made.
const LONG_YAML: usize = 0;

/// A phrase, the words to write instead, and how often it may occur.
const PHRASES: &[(&str, &str, usize)] = &[
    ("come again", "be delivered again, be retried", 0),
    ("comes again", "is delivered again, is retried", 0),
    ("goes on", "continues, resumes", 0),
    ("tried again", "retried", 0),
    ("tries again", "retries", 0),
    ("try again", "retry", 0),
    ("made again", "rebuilt", 0),
    ("whoever", "the noun: caller, operator, instance", 0),
    ("somebody", "the noun: caller, operator, client", 3),
    ("nobody", "no and the noun", 1),
    ("everybody", "every and the noun", 0),
    ("read strongly", "strongly consistent read", 0),
    ("set aside", "quarantine", 0),
    ("sets aside", "quarantines", 0),
    ("put aside", "park", 0),
    ("watching", "monitoring", 12),
    ("verdict", "delivery, or what was found", 0),
    ("order of everything", "`$all`", 0),
    ("follows the log", "subscriber", 0),
    ("the rails", "the libraries", 0),
    ("gets through", "reaches, is applied", 0),
    ("comes to", "the fact itself", 0),
    ("goes back", "rolls back, returns", 0),
    ("stands still", "stops", 0),
    ("in steps", "canary", 0),
    ("mended", "repaired", 0),
    ("throw away", "discard", 0),
    ("sent back", "redriven", 0),
];

/// The exempt files: records, and texts that are written elsewhere.
const EXCEPT: [&str; 5] = [
    "crates/xtask/tests/repository/prose.rs",
    "docs/benchmarks.md",
    "docs/SUMMARY.md",
    "docs/glossary.md",
    "docs/reference/parameters.md",
];

/// Finds the places of the lines with more than `columns` columns, without the lines for which
/// `is_exempt` is true. `is_exempt` keeps a state from line to line of a file.
fn longer(files: &[File], columns: usize, is_exempt: fn(&mut bool, &str) -> bool) -> Vec<String> {
    let mut places = Vec::new();
    for File { path, text } in files {
        let mut state = false;
        for (number, line) in text.lines().enumerate() {
            if !is_exempt(&mut state, line) && line.chars().count() > columns {
                places.push(format!("{path}:{}", number + 1));
            }
        }
    }
    places
}

fn at_most(most: usize, places: &[String], what: &str) {
    assert!(
        places.len() <= most,
        "{what}: {} instead of at most {most}: {:#?}",
        places.len(),
        &places[..places.len().min(20)]
    );
}

#[test]
fn lines_are_short() {
    at_most(
        LONG_RUST,
        &longer(&files(&[".rs"], &EXCEPT), 100, |_, _| false),
        "lines of Rust over 100 columns",
    );
    let is_table_or_code = |in_code: &mut bool, line: &str| {
        let is_fence = line.trim_start().starts_with("```");
        *in_code ^= is_fence;
        *in_code || is_fence || line.trim_start().starts_with('|')
    };
    let markdown = longer(&files(&[".md"], &EXCEPT), 120, is_table_or_code);
    at_most(LONG_MARKDOWN, &markdown, "lines of Markdown over 120 columns");
    let parts: Vec<_> = files(&[".yaml"], &EXCEPT)
        .into_iter()
        .filter(|file| file.path.contains("/parts/") || file.path.ends_with("deploy.yaml"))
        .collect();
    let yaml = longer(&parts, 120, |_, _| false);
    at_most(LONG_YAML, &yaml, "lines of YAML over 120 columns");
}

#[test]
fn prose_uses_the_words_of_the_glossary() {
    let files = files(&[".rs", ".md", "template.yaml"], &EXCEPT);
    for (phrase, instead, most) in PHRASES {
        let mut places = Vec::new();
        for File { path, text } in &files {
            for (number, line) in text.lines().enumerate() {
                // In Rust, only comments are prose.
                let prose = match path.ends_with(".rs") {
                    true => line.split_once("//").map_or("", |(_, comment)| comment),
                    false => line,
                };
                let found = prose.to_lowercase().matches(phrase).count();
                places.extend((0..found).map(|_| format!("{path}:{}", number + 1)));
            }
        }
        at_most(*most, &places, &format!("`{phrase}`; write: {instead}"));
    }
}
