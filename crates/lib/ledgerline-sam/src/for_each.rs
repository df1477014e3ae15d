//! Expands `Fn::ForEach` of a template (the transform `AWS::LanguageExtensions`) as CloudFormation
//! does. CloudFormation replaces the identifier in the keys of the loop's body, in `Fn::Sub` and in
//! `Ref`, and nowhere else. SAM replaces it in every text. A text that the two would read
//! differently is an error.

use crate::yaml::{Kind, Node};

type Located<T> = Result<T, (usize, String)>;

/// The prefix of a loop's key. The loop's name follows it.
pub(crate) const LOOP: &str = "Fn::ForEach::";

/// The transform that a template with loops must name.
const TRANSFORM: &str = "AWS::LanguageExtensions";

/// Identifiers and their values, the innermost loop last.
type Bound<'a> = Vec<(&'a str, &'a str)>;

/// Returns the template with its loops expanded. A node of a loop's body keeps its line.
///
/// # Errors
/// The line of an invalid loop, and a description of the problem.
pub(crate) fn written_out(root: &Node) -> Located<Node> {
    let mut sections = Vec::new();
    for (name, section) in root.entries() {
        let section = match name.as_str() {
            "Resources" | "Conditions" | "Outputs" => expand_section(section, root)?,
            _ => section.clone(),
        };
        sections.push((name.clone(), section));
    }
    match root.kind {
        Kind::Map(_) => Ok(Node::new(root.line, Kind::Map(sections))),
        Kind::Scalar(_) | Kind::List(_) => Ok(root.clone()),
    }
}

/// Returns a section of the template with the entries of each `Fn::ForEach` in place of the loop.
///
/// # Errors
/// With the line, when the template does not declare the transform, or a loop is wrong.
fn expand_section(section: &Node, root: &Node) -> Located<Node> {
    let mut entries = Vec::new();
    for (key, node) in section.entries() {
        if key.starts_with(LOOP) {
            let transforms = root.get("Transform").into_iter().flat_map(|node| match node.kind {
                Kind::List(_) => node.items().iter().collect(),
                Kind::Scalar(_) | Kind::Map(_) => vec![node],
            });
            if !transforms.into_iter().any(|transform| transform.as_str() == Some(TRANSFORM)) {
                return Err((node.line, format!("{key} needs Transform: [{TRANSFORM}, …]")));
            }
            run(key, node, &mut Bound::new(), &mut entries)?;
        } else {
            entries.push((key.clone(), node.clone()));
        }
    }
    let mut keys = std::collections::BTreeSet::new();
    if let Some((key, node)) = entries.iter().find(|(key, _)| !keys.insert(key.as_str())) {
        return Err((node.line, format!("{key} occurs twice")));
    }
    Ok(Node::new(section.line, Kind::Map(entries)))
}

/// Expands a loop: for each of its values, adds the nodes of the body to the entries.
fn run<'a>(
    key: &str,
    node: &'a Node,
    bound: &mut Bound<'a>,
    entries: &mut Vec<(String, Node)>,
) -> Located<()> {
    let wrong = |what: &str| (node.line, format!("{key}: {what}"));
    let [identifier, values, body] = node.items() else {
        return Err(wrong("an identifier, a list of values and a body are needed"));
    };
    let identifier = identifier.as_str().ok_or_else(|| wrong("the identifier must be a text"))?;
    // The list may be empty, because `cargo xtask wire` fills it later.
    if !matches!(values.kind, Kind::List(_)) {
        return Err(wrong("the values must be a list that is written here"));
    }
    for value in values.items() {
        let value = value.as_str().ok_or((value.line, format!("{key}: a value must be text")))?;
        bound.push((identifier, value));
        for (name, node) in body.entries() {
            if name.starts_with(LOOP) {
                run(name, node, bound, entries)?;
                continue;
            }
            let new = filled(name, bound);
            if new == *name {
                return Err((
                    node.line,
                    format!("{key}: {name} needs ${{{identifier}}} in its name"),
                ));
            }
            entries.push((new, copy(node, bound)?));
        }
        bound.pop();
    }
    Ok(())
}

/// Returns the text with the identifiers replaced by their values.
fn filled(text: &str, bound: &Bound<'_>) -> String {
    bound
        .iter()
        .fold(text.to_owned(), |text, (name, value)| text.replace(&format!("${{{name}}}"), value))
}

/// Copies a node of a loop's body, with the identifiers replaced by these values.
fn copy(node: &Node, bound: &Bound<'_>) -> Located<Node> {
    let line = node.line;
    let kind = match &node.kind {
        Kind::Scalar(value) => {
            if let Some(text) = value.as_str().filter(|text| filled(text, bound) != **text) {
                return Err((line, format!("{text}: CloudFormation replaces this only in !Sub")));
            }
            node.kind.clone()
        }
        Kind::List(items) => {
            Kind::List(items.iter().map(|item| copy(item, bound)).collect::<Result<_, _>>()?)
        }
        Kind::Map(entries) => match entries.as_slice() {
            [(function, name)] if function == "Ref" => {
                let value = bound.iter().rfind(|(identifier, _)| name.as_str() == Some(identifier));
                match value {
                    Some((_, value)) => return Ok(Node::string(line, *value)),
                    None => Kind::Map(vec![(function.clone(), copy(name, bound)?)]),
                }
            }
            [(function, argument)] if function == "Fn::Sub" && argument.as_str().is_some() => {
                let text = filled(argument.as_str().unwrap_or_default(), bound);
                // If no variable is left, the result is a plain text, such as the name that a `Ref`
                // needs.
                if !text.contains("${") {
                    return Ok(Node::string(line, text));
                }
                Kind::Map(vec![(function.clone(), Node::string(argument.line, text))])
            }
            entries => Kind::Map(
                entries
                    .iter()
                    .map(|(name, node)| {
                        if name.starts_with(LOOP) {
                            return Err((
                                node.line,
                                format!("{name}: a loop within a resource is not emulated"),
                            ));
                        }
                        if filled(name, bound) != *name {
                            let message =
                                format!("{name}: a loop does not replace the name of a property");
                            return Err((node.line, message));
                        }
                        Ok((name.clone(), copy(node, bound)?))
                    })
                    .collect::<Located<_>>()?,
            ),
        },
    };
    Ok(Node::new(line, kind))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::yaml;

    fn resources(text: &str) -> Located<serde_json::Value> {
        let text =
            format!("Transform: [{TRANSFORM}, AWS::Serverless-2016-10-31]\nResources:\n{text}");
        written_out(&yaml::parse(&text)?).map(|root| root.to_json()["Resources"].take())
    }

    #[test]
    fn a_loop_makes_a_resource_of_each_value_and_replaces_it_in_keys_subs_and_refs() {
        let made = resources(
            "  Fn::ForEach::Queues:
    - Queue
    - [
        A, B, # depot
        C,
      ]
    - ${Queue}Queue:
        Name: !Ref Queue
        Arn: !GetAtt [!Sub \"${Queue}Letters\", Arn]
        Text: !Sub \"${Queue} of ${AWS::StackName}\"
        Alarm: { Ref: !Sub \"${Queue}Function\" }
  D: { Name: d }
",
        );
        let made = made.unwrap();
        assert_eq!(
            made["BQueue"],
            json!({
                "Name": "B",
                "Arn": { "Fn::GetAtt": ["BLetters", "Arn"] },
                "Text": { "Fn::Sub": "B of ${AWS::StackName}" },
                "Alarm": { "Ref": "BFunction" },
            })
        );
        assert_eq!(
            made.as_object().unwrap().keys().collect::<Vec<_>>(),
            ["AQueue", "BQueue", "CQueue", "D"]
        );
    }

    #[test]
    fn a_loop_in_a_loop_makes_a_resource_of_each_pair() {
        let made = resources(
            "  Fn::ForEach::Rows:
    - Row
    - [A, B]
    - Fn::ForEach::Columns:
        - Column
        - [X, Y]
        - ${Row}${Column}: { Name: !Sub \"${Row}-${Column}\" }
",
        );
        let made = made.unwrap();
        assert_eq!(made.as_object().unwrap().len(), 4);
        assert_eq!(made["BX"], json!({ "Name": "B-X" }));
    }

    #[test]
    fn a_loop_that_cloudformation_and_sam_read_differently_is_refused_with_its_line() {
        for (body, line, message) in [
            ("    - ${Queue}Queue:\n        Name: ${Queue}\n", 7, "only in !Sub"),
            ("    - Queue: {}\n", 6, "needs ${Queue} in its name"),
            (
                "    - ${Queue}Queue:\n        ${Queue}Name: a\n",
                7,
                "does not replace the name of a property",
            ),
            (
                "    - ${Queue}Queue:\n        Fn::ForEach::Tags: [Tag, [a], {}]\n",
                7,
                "within a resource",
            ),
        ] {
            let text = format!("  Fn::ForEach::Queues:\n    - Queue\n    - [A]\n{body}");
            let (at, found) = resources(&text).unwrap_err();
            assert!(at == line && found.contains(message), "{at}: {found}");
        }
        let twice = "  Fn::ForEach::Queues: [Queue, [A], { \"${Queue}\": {} }]\n  A: {}\n";
        assert!(resources(twice).unwrap_err().1.contains("A occurs twice"));
        let parameter = "  Fn::ForEach::Queues: [Queue, !Ref Queues, { \"${Queue}\": {} }]\n";
        assert!(resources(parameter).unwrap_err().1.contains("a list that is written here"));
        let plain =
            yaml::parse("Resources:\n  Fn::ForEach::Q: [Q, [A], { \"${Q}\": {} }]\n").unwrap();
        assert!(written_out(&plain).unwrap_err().1.contains(TRANSFORM));
    }
}
