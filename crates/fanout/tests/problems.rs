//! Compares docs/http.md with the problems that a client can get, and with their statuses.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::collections::BTreeMap;

use applications::All;
use ledgerline::{Aggregate, Aggregates, RefusalKind, Visitor};
use ledgerline_lambda::http::{PROBLEM_TYPES, Problem};

/// Reads the codes and statuses in the table of docs/http.md.
fn documented() -> BTreeMap<String, u16> {
    let page = include_str!("../../../docs/http.md");
    let (_, problems) = page.split_once("## Problems").unwrap();
    let rows = problems.lines().filter(|line| line.starts_with("| `"));
    let codes = rows.flat_map(|row| {
        let mut cells = row.split('|').skip(1);
        let codes = cells.next().unwrap();
        let status = cells.next().unwrap().trim().parse().unwrap();
        codes.split('`').skip(1).step_by(2).map(move |code| (code.to_owned(), status))
    });
    codes.collect()
}

#[test]
fn every_problem_is_documented_with_its_status() {
    struct Refusals(Vec<(&'static str, u16)>);
    impl Visitor for Refusals {
        fn visit<A: Aggregate>(&mut self) {
            self.0.extend(
                A::REFUSALS
                    .iter()
                    .map(|refusal| (refusal.code(), Problem::from(refusal).status.as_u16())),
            );
        }
    }
    let mut told = Refusals(Vec::new());
    All::visit(&mut told);
    told.0.extend(PROBLEM_TYPES.iter().map(|kind| (kind.code, kind.status.as_u16())));
    let documented = documented();
    let missing: Vec<_> =
        told.0.iter().filter(|(code, status)| documented.get(*code) != Some(status)).collect();
    assert!(
        missing.is_empty(),
        "docs/http.md lacks these, or has another status for them: {missing:?}"
    );
}

/// A code means the same thing in every aggregate.
#[test]
fn a_code_has_one_kind_of_refusal() {
    struct Kinds(BTreeMap<&'static str, RefusalKind>);
    impl Visitor for Kinds {
        fn visit<A: Aggregate>(&mut self) {
            for refusal in A::REFUSALS {
                let known = *self.0.entry(refusal.code()).or_insert(refusal.kind());
                assert_eq!(known, refusal.kind(), "{} of {}", refusal.code(), A::CATEGORY);
            }
        }
    }
    let mut kinds = Kinds(BTreeMap::new());
    All::visit(&mut kinds);
    for kind in PROBLEM_TYPES {
        assert!(!kinds.0.contains_key(kind.code), "{} is a problem of the libraries", kind.code);
    }
}
