//! The links between pages, and the contents of the book.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Files whose links are not checked: samples of older versions, and the template of
/// docs/benchmarks.md.
const EXCEPT: [&str; 2] = ["before_manifests", "benches/src/page.md"];

/// Returns the tracked Markdown files.
fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let listed =
        Command::new("git").args(["ls-files", "*.md"]).current_dir(&root).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let pages = listed.lines().filter(|path| !EXCEPT.iter().any(|except| path.contains(except)));
    // A file that is deleted and not yet committed is listed too.
    pages.map(|path| root.join(path)).filter(|path| path.exists()).collect()
}

/// Returns the lines of a page that are no code, with spans of code blanked.
fn prose(page: &str) -> String {
    let mut in_code = false;
    let mut lines = Vec::new();
    for line in page.lines() {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        lines.push(if in_code || is_fence { "" } else { line });
    }
    let text = lines.join("\n");
    let spans = text.split('`').enumerate();
    spans.map(|(place, span)| if place % 2 == 0 { span } else { "code" }).collect()
}

/// Returns the targets of the links of a page: the texts between `](` and `)`. A link may be broken
/// over two lines.
fn links(page: &str) -> Vec<String> {
    let text = prose(page);
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    targets.map(|(target, _)| target.to_owned()).collect()
}

/// Returns the anchors of a page, as GitHub and mdbook make them of the headings.
fn anchors(page: &str) -> BTreeSet<String> {
    let mut in_code = false;
    let mut seen = BTreeMap::<String, usize>::new();
    let mut anchors = BTreeSet::new();
    for line in page.lines() {
        in_code ^= line.trim_start().starts_with("```");
        let heading = line.trim_start_matches('#');
        if in_code || heading == line || !heading.starts_with(' ') {
            continue;
        }
        let kept = |c: &char| c.is_alphanumeric() || [' ', '-', '_'].contains(c);
        let slug: String = heading.trim().chars().filter(kept).collect();
        let slug = slug.to_lowercase().replace(' ', "-");
        let before = seen.entry(slug.clone()).or_default();
        anchors.insert(if *before == 0 { slug } else { format!("{slug}-{before}") });
        *before += 1;
    }
    anchors
}

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    let apps = Path::new(env!("CARGO_MANIFEST_DIR")).join("../apps");
    let mut broken = Vec::new();
    let mut checked = 0;
    for path in pages() {
        for link in links(&fs::read_to_string(&path).unwrap()) {
            if ["http://", "https://", "mailto:"].iter().any(|scheme| link.starts_with(scheme)) {
                continue;
            }
            checked += 1;
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target =
                if file.is_empty() { path.clone() } else { path.parent().unwrap().join(file) };
            // An application may be deleted with its folder alone (docs/applications.md).
            let application =
                file.split_once("crates/apps/").and_then(|(_, path)| path.split('/').next());
            if application.is_some_and(|name| !apps.join(name).exists()) {
                continue;
            }
            let known = match fs::read_to_string(&target) {
                Ok(page) => anchor.is_empty() || anchors(&page).contains(anchor),
                Err(_) => target.exists() && anchor.is_empty(),
            };
            if !known {
                broken.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
    assert!(checked > 100, "{checked} links are too few to be all");
}

#[test]
fn the_book_has_every_page() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").canonicalize().unwrap();
    let summary = fs::read_to_string(docs.join("SUMMARY.md")).unwrap();
    let listed: BTreeSet<_> = links(&summary).into_iter().map(|link| docs.join(link)).collect();
    let pages =
        pages().into_iter().filter(|path| path.starts_with(&docs) && !path.ends_with("SUMMARY.md"));
    let missing: Vec<_> = pages.filter(|path| !listed.contains(path)).collect();
    assert!(missing.is_empty(), "docs/SUMMARY.md does not list {missing:#?}");
}

#[test]
fn a_broken_link_is_found() {
    let page = "# A b\n```\n[x](y)\n# No\n```\n## A b\n[one](z.md#a) `[c](d)`\n[two\nlines](e.md)";
    assert_eq!(links(page), ["z.md#a", "e.md"]);
    assert_eq!(anchors(page), BTreeSet::from(["a-b".to_owned(), "a-b-1".to_owned()]));
}
