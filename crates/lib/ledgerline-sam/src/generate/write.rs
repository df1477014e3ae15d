//! Writes a template as text. Two runs write identical bytes.
//!
//! A value is on one line if it fits and has no comment inside. So an added entry of a list changes
//! one line, or adds one.

use serde_json::Value;

use crate::yaml::{Kind, Node};

/// The most columns of a line. A text without spaces may be longer.
const WIDTH: usize = 120;

/// The words that a YAML parser reads as something else than text.
const RESERVED: [&str; 9] = ["y", "n", "yes", "no", "on", "off", "true", "false", "null"];

/// Returns the text of a template. A section and a resource are never on one line with their names.
#[must_use]
pub(super) fn write(template: &Node) -> String {
    let mut lines = comment(template);
    for (name, section) in template.entries() {
        let is_map = matches!(section.kind, Kind::Map(_)) && !section.is_intrinsic();
        if !is_map {
            lines.extend(entry(name, section, WIDTH));
            continue;
        }
        lines.push(String::new());
        lines.extend(comment(section));
        lines.push(format!("{name}:"));
        for (place, (id, node)) in section.entries().iter().enumerate() {
            if name == "Resources" && place > 0 {
                lines.push(String::new());
            }
            lines.extend(indent(entry(id, node, WIDTH - 2)));
        }
    }
    lines.join("\n") + "\n"
}

fn comment(node: &Node) -> Vec<String> {
    let line = |line: &String| match line.as_str() {
        "" => String::new(),
        line => format!("# {line}"),
    };
    node.comment.iter().map(line).collect()
}

fn indent(lines: Vec<String>) -> Vec<String> {
    let line = |line: String| if line.is_empty() { line } else { format!("  {line}") };
    lines.into_iter().map(line).collect()
}

/// The lines of an entry of a map, with the comment above it.
fn entry(key: &str, node: &Node, width: usize) -> Vec<String> {
    let key = text(key);
    let mut lines = comment(node);
    let (tag, value) = split_tag(node);
    match one_line(node) {
        Some(line) if key.len() + 2 + line.len() <= width => lines.push(format!("{key}: {line}")),
        one_line => {
            let head = [format!("{key}:"), tag].join(" ");
            let head = head.trim_end();
            match &value.kind {
                Kind::Scalar(_) => {
                    let mut rest = scalar_lines(value, one_line, width - 2).into_iter();
                    lines.push(format!("{head} {}", rest.next().unwrap_or_default()));
                    lines.extend(indent(rest.collect()));
                }
                Kind::List(_) | Kind::Map(_) => {
                    lines.push(head.to_owned());
                    lines.extend(indent(block(value, width - 2)));
                }
            }
        }
    }
    lines
}

/// The lines of a list or a map below its key.
fn block(node: &Node, width: usize) -> Vec<String> {
    match &node.kind {
        // An intrinsic that is an item of a list, and too long for one line, is in its long form.
        Kind::Map(entries) => {
            entries.iter().flat_map(|(key, node)| entry(key, node, width)).collect()
        }
        Kind::List(items) => items.iter().flat_map(|node| item(node, width)).collect(),
        Kind::Scalar(_) => scalar_lines(node, None, width),
    }
}

/// The lines of an item of a list, with the comment above it.
fn item(node: &Node, width: usize) -> Vec<String> {
    let mut lines = comment(node);
    let rest = match one_line(node).filter(|line| line.len() + 2 <= width) {
        Some(line) => vec![line],
        None => block(node, width - 2),
    };
    let mut rest = indent(rest).into_iter();
    // An item may begin with a comment: the sign of the item belongs to the first entry.
    for line in rest.by_ref() {
        if line.trim_start().starts_with('#') {
            lines.push(line.trim_start().to_owned());
            continue;
        }
        lines.push(format!("- {}", line.trim_start()));
        break;
    }
    lines.extend(rest);
    lines
}

/// The lines of a text that is too long for one: a block, or a text in quotation marks that is
/// broken at spaces.
fn scalar_lines(node: &Node, one_line: Option<String>, width: usize) -> Vec<String> {
    let whole = node.as_str().unwrap_or_default();
    if let Some(block) = whole.strip_suffix('\n').filter(|_| !whole.trim().is_empty()) {
        return [vec!["|".to_owned()], block.lines().map(ToOwned::to_owned).collect()].concat();
    }
    // A text of JSON has no spaces at which a reader would break it.
    let whole = match one_line.filter(|_| !whole.starts_with('{')) {
        Some(_) => quote(whole),
        None => return vec![scalar(node)],
    };
    let mut lines = vec![String::new()];
    for word in whole.split(' ') {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.len() + 1 + word.len() <= width - 20 || word.is_empty() => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// The short tag of an intrinsic, and its argument; no tag for every other node. An intrinsic of an
/// intrinsic has no short tag, because a value of YAML has one tag at most.
fn split_tag(node: &Node) -> (String, &Node) {
    match node.entries() {
        [(name, argument)] if node.is_intrinsic() && !argument.is_intrinsic() => {
            (format!("!{}", name.trim_start_matches("Fn::")), argument)
        }
        _ => (String::new(), node),
    }
}

/// The node on one line; `None` if it has a comment inside or a text of several lines.
fn one_line(node: &Node) -> Option<String> {
    let inner = |node: &Node| if node.comment.is_empty() { one_line(node) } else { None };
    let (tag, argument) = split_tag(node);
    if !tag.is_empty() {
        let argument = match argument.items() {
            [id, attribute] if tag == "!GetAtt" => {
                format!("{}.{}", id.as_str()?, attribute.as_str()?)
            }
            _ => inner(argument)?,
        };
        return Some(format!("{tag} {argument}"));
    }
    match &node.kind {
        Kind::Scalar(_) => Some(scalar(node)).filter(|line| !line.contains('\n')),
        Kind::List(items) => {
            let items: Vec<_> = items.iter().map(inner).collect::<Option<_>>()?;
            Some(format!("[{}]", items.join(", ")))
        }
        Kind::Map(entries) if entries.is_empty() => Some("{}".to_owned()),
        Kind::Map(entries) => {
            let entry =
                |(key, node): &(String, Node)| Some(format!("{}: {}", text(key), inner(node)?));
            let entries: Vec<_> = entries.iter().map(entry).collect::<Option<_>>()?;
            Some(format!("{{ {} }}", entries.join(", ")))
        }
    }
}

fn scalar(node: &Node) -> String {
    match &node.kind {
        Kind::Scalar(Value::String(whole)) if whole.ends_with('\n') && !whole.trim().is_empty() => {
            whole.clone()
        }
        Kind::Scalar(Value::String(whole)) => text(whole),
        Kind::Scalar(value) => value.to_string(),
        Kind::List(_) | Kind::Map(_) => String::new(),
    }
}

/// A text without quotation marks if every parser reads it as text, in a list too.
fn text(whole: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:$ ".contains(c);
    let begins = whole.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/' || c == '$');
    let is_word = !RESERVED.contains(&whole.to_lowercase().as_str());
    let has_end = whole.ends_with([':', ' ']) || whole.contains(": ");
    match begins && is_word && !has_end && whole.chars().all(is_plain) {
        true => whole.to_owned(),
        false => quote(whole),
    }
}

fn quote(whole: &str) -> String {
    match whole.contains(['"', '\\']) && !whole.contains(['\'', '\n']) {
        true => format!("'{whole}'"),
        false => Value::from(whole).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{tests::TANKS, yaml};

    fn rewrite(text: &str) -> String {
        write(&yaml::parse_commented(text).unwrap())
    }

    #[test]
    fn a_written_template_reads_as_before() {
        let text = rewrite(TANKS.text());
        assert_eq!(
            yaml::parse(&text).unwrap().to_json(),
            yaml::parse(TANKS.text()).unwrap().to_json()
        );
        assert_eq!(rewrite(&text), text);
    }

    #[test]
    fn a_comment_stays_above_its_entry_or_item() {
        let text = "Resources:\n  # --- Items\n\n  # The items.\n  Items:\n    # Why it is.\n    \
            Type: X\n    Policies:\n      # For two.\n      - { A: 1, B: 2 }\n\n  \
            Others: { Type: Z }\n";
        assert_eq!(rewrite(text), format!("\n{text}"));
    }

    /// YAML 1.1, which CloudFormation reads, takes some texts for other values.
    #[test]
    fn a_text_that_a_parser_reads_as_something_else_is_in_quotation_marks() {
        let text = "\nOutputs:\n  \
            A: { Of: \"on\", Not: \"N\", Number: \"12\", Date: \"2012-10-17\" }\n  \
            B: { Star: \"*\", Colon: \"a: b\", Empty: \"\", Plain: AWS::SNS::Topic, Is: true }\n";
        assert_eq!(rewrite(text), text);
    }

    #[test]
    fn a_long_value_is_broken_at_its_entries_or_spaces() {
        let long = "word ".repeat(30);
        let text = rewrite(&format!("Outputs:\n  A: {{ B: !Sub \"{}\" }}\n", long.trim_end()));
        assert!(text.lines().count() > 3 && text.lines().all(|line| line.len() <= WIDTH), "{text}");
        assert_eq!(
            yaml::parse(&text).unwrap().to_json()["Outputs"]["A"]["B"]["Fn::Sub"],
            long.trim_end()
        );
    }
}
