//! The links between pages, and the contents of the book.

use std::collections::{BTreeMap, BTreeSet};

use super::{deleted_applications, files, root, without_code};

/// Files whose links are not checked: samples of older versions, and the template of
/// docs/benchmarks.md.
const EXCEPT: [&str; 1] = ["benches/src/page.md"];

/// Returns the targets of the links of a page: the texts between `](` and `)`. A link may be broken
/// over two lines.
pub(super) fn targets(page: &str) -> Vec<String> {
    let text = without_code(page);
    let spans = text.split('`').enumerate();
    let text: String =
        spans.map(|(place, span)| if place % 2 == 0 { span } else { "code" }).collect();
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    targets.map(|(target, _)| target.to_owned()).collect()
}

/// Returns the anchors of a page, as GitHub and mdbook make them of the headings.
fn anchors(page: &str) -> BTreeSet<String> {
    let mut seen = BTreeMap::<String, usize>::new();
    let mut anchors = BTreeSet::new();
    for line in without_code(page).lines() {
        let heading = line.trim_start_matches('#');
        if heading == line || !heading.starts_with(' ') {
            continue;
        }
        let is_kept = |c: &char| c.is_alphanumeric() || [' ', '-', '_'].contains(c);
        let slug: String = heading.trim().chars().filter(is_kept).collect();
        let slug = slug.to_lowercase().replace(' ', "-");
        let earlier = seen.entry(slug.clone()).or_default();
        anchors.insert(if *earlier == 0 { slug } else { format!("{slug}-{earlier}") });
        *earlier += 1;
    }
    anchors
}

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    let deleted = deleted_applications();
    let mut broken = Vec::new();
    let mut checked = 0;
    for page in files(&[".md"], &EXCEPT) {
        let path = root().join(&page.path);
        for link in targets(&page.text) {
            let is_elsewhere =
                ["http://", "https://", "mailto:"].iter().any(|scheme| link.starts_with(scheme));
            if is_elsewhere || deleted.iter().any(|folder| link.contains(folder)) {
                continue;
            }
            checked += 1;
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target =
                if file.is_empty() { path.clone() } else { path.parent().unwrap().join(file) };
            let is_known = match std::fs::read_to_string(&target) {
                Ok(page) => anchor.is_empty() || anchors(&page).contains(anchor),
                Err(_) => target.exists() && anchor.is_empty(),
            };
            if !is_known {
                broken.push(format!("{}: {link}", page.path));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
    assert!(checked > 100, "{checked} links are too few to be all");
}

#[test]
fn the_book_has_every_page() {
    let summary = std::fs::read_to_string(root().join("docs/SUMMARY.md")).unwrap();
    let listed: BTreeSet<_> =
        targets(&summary).into_iter().map(|link| format!("docs/{link}")).collect();
    let pages = files(&[".md"], &["docs/SUMMARY.md"]).into_iter().map(|page| page.path);
    let missing: Vec<_> =
        pages.filter(|path| path.starts_with("docs/") && !listed.contains(path)).collect();
    assert!(missing.is_empty(), "docs/SUMMARY.md does not list {missing:#?}");
}

#[test]
fn links_and_anchors_of_a_page_are_those_outside_of_code() {
    let page = "# A b\n```\n[x](y)\n# No\n```\n## A b\n[one](z.md#a) `[c](d)`\n[two\nlines](e.md)";
    assert_eq!(targets(page), ["z.md#a", "e.md"]);
    assert_eq!(anchors(page), BTreeSet::from(["a-b".to_owned(), "a-b-1".to_owned()]));
}
