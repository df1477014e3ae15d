//! Resources with a condition, and the references to these resources.

use std::collections::BTreeSet;

use anyhow::{Result, bail};
use serde_json::Value;

use super::value::{reference, substitution};
use crate::yaml::{Kind, Node};

/// Makes the resources of a fragment depend on this condition. A resource with another condition
/// `HasX` then depends on `<condition>AndX`, which stands for both.
pub(super) fn add(fragment: &mut Node, condition: &str) {
    let Some(Kind::Map(resources)) = fragment.get_mut("Resources").map(|node| &mut node.kind)
    else {
        return;
    };
    for (_, resource) in resources.iter_mut().filter(|(_, it)| it.get("Type").is_some()) {
        if let Kind::Map(entries) = &mut resource.kind {
            let own = entries.iter_mut().find(|(name, _)| name == "Condition");
            match own {
                Some((_, own)) => {
                    let other = own.as_str().unwrap_or_default().trim_start_matches("Has");
                    *own = format!("{condition}And{other}").into();
                }
                None => entries.insert(1, ("Condition".to_owned(), condition.into())),
            }
        }
    }
}

/// Makes references to resources with this condition conditional, in lists and texts of other
/// resources. Resources with one of the conditions that imply it may name them.
///
/// # Errors
/// When a resource is named outside a list and a text of lines.
pub(super) fn guard(template: &mut Node, condition: &str, implied_by: &[&str]) -> Result<()> {
    let has_one = |resource: &Node, condition: &str| {
        let own = resource.get("Condition").and_then(Node::as_str);
        let rest = own.and_then(|own| own.strip_prefix(condition));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("And"))
    };
    let has = |resource: &Node| has_one(resource, condition);
    let resources = template.get("Resources").map_or(&[][..], Node::entries).iter();
    let ids = resources.filter(|(_, resource)| has(resource)).map(|(id, _)| id.clone()).collect();
    let guard = Guard { condition, implied_by, ids };
    let Some(Kind::Map(resources)) = template.get_mut("Resources").map(|node| &mut node.kind)
    else {
        return Ok(());
    };
    for (id, resource) in resources.iter_mut().filter(|(id, _)| !guard.ids.contains(id)) {
        let may_name = implied_by.iter().any(|condition| has_one(resource, condition));
        if !may_name && guard.guard_node(resource) {
            bail!("`{id}` names a resource that exists only with `{condition}`; name it in a list");
        }
    }
    Ok(())
}

/// A value for each case of a condition.
fn choose(condition: &str, node: Node, otherwise: Node) -> Node {
    Node::map([("Fn::If", Node::list([condition.into(), node, otherwise]))])
}

struct Guard<'c> {
    condition: &'c str,
    implied_by: &'c [&'c str],
    ids: BTreeSet<String>,
}

impl Guard<'_> {
    /// Guards the references in a list or a text of lines. Returns whether the node names a resource
    /// outside of both.
    fn guard_node(&self, node: &mut Node) -> bool {
        if let [(function, argument)] = node.entries() {
            match (function.as_str(), argument.as_str()) {
                ("Ref", Some(id)) => return self.ids.contains(id),
                ("Fn::GetAtt", Some(path)) => {
                    return path.split('.').next().is_some_and(|id| self.ids.contains(id));
                }
                ("Fn::Sub", Some(text)) => {
                    let is_named = self.is_in(text);
                    if is_named && text.contains('\n') {
                        *node = self.guard_lines(text).with_comment(Some(node.comment.clone()));
                        return false;
                    }
                    return is_named;
                }
                ("Fn::If", _)
                    if argument.items().first().and_then(Node::as_str).is_some_and(|known| {
                        known == self.condition || self.implied_by.contains(&known)
                    }) =>
                {
                    return false;
                }
                (_, _) => {}
            }
        }
        match &mut node.kind {
            Kind::Scalar(_) => false,
            Kind::Map(entries) => {
                let mut is_named = false;
                entries.iter_mut().for_each(|(_, node)| is_named |= self.guard_node(node));
                is_named
            }
            Kind::List(items) => {
                let are_named: Vec<_> =
                    items.iter_mut().map(|item| self.guard_node(item)).collect();
                // The list would be empty, which no policy may have.
                let mut all = items.iter().zip(&are_named);
                if !items.is_empty()
                    && all.all(|(item, is_named)| *is_named || self.is_left_out(item))
                {
                    return true;
                }
                for (item, _) in items.iter_mut().zip(are_named).filter(|(_, is_named)| *is_named) {
                    let named = std::mem::replace(item, Node::list([]));
                    *item = choose(self.condition, named, reference("AWS::NoValue"));
                }
                false
            }
        }
    }

    /// Whether an item is left out without one of the conditions that imply this one.
    fn is_left_out(&self, item: &Node) -> bool {
        let choice = item.get("Fn::If").map_or(&[][..], Node::items);
        let [condition, _, otherwise] = choice else { return false };
        let otherwise = otherwise.get("Ref").and_then(Node::as_str);
        condition.as_str().is_some_and(|condition| self.implied_by.contains(&condition))
            && otherwise == Some("AWS::NoValue")
    }

    /// Returns a text of lines, each of which is there only if its resources are.
    fn guard_lines(&self, text: &str) -> Node {
        let mut parts = vec![String::new()];
        for line in text.split_inclusive('\n') {
            match self.is_in(line) {
                true => parts.extend([line.to_owned(), String::new()]),
                false => parts.last_mut().into_iter().for_each(|part| part.push_str(line)),
            }
        }
        let part = |part: &String| match self.is_in(part) {
            true => choose(
                self.condition,
                substitution(part.clone()),
                Node::new(0, Kind::Scalar(Value::from(""))),
            ),
            false => substitution(part.clone()),
        };
        let mut parts: Vec<_> = parts.iter().filter(|part| !part.is_empty()).map(part).collect();
        match parts.len() {
            1 => parts.remove(0),
            _ => Node::map([("Fn::Join", Node::list(["".into(), Node::list(parts)]))]),
        }
    }

    fn is_in(&self, text: &str) -> bool {
        let names = text.split("${").skip(1).filter_map(|rest| rest.split(['}', '.']).next());
        names.into_iter().any(|name| self.ids.contains(name))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::yaml;

    #[test]
    fn references_to_a_conditional_resource_are_conditional() {
        let text = "Resources:\n  Q: { Type: X, Condition: C, Properties: { A: !Ref Q } }\n  \
            F:\n    Type: Y\n    Properties:\n      \
            Lines: !Sub |\n        ${A} a\n        ${Q} b\n        ${Z} c\n      \
            Statements:\n        - { Resource: [!GetAtt T.Arn, !GetAtt Q.Arn] }\n        \
            - { Resource: !Sub \"${Q.Arn}*\" }\n        \
            - { Resource: !If [C, !Ref Q, !Ref T] }\n        - { Resource: [!Ref Q] }\n";
        let mut template = yaml::parse(text).unwrap();
        guard(&mut template, "C", &[]).unwrap();
        let json = template.to_json();
        assert_eq!(json["Resources"]["Q"]["Properties"]["A"], json!({ "Ref": "Q" }));
        let properties = &json["Resources"]["F"]["Properties"];
        let none = json!({ "Ref": "AWS::NoValue" });
        assert_eq!(
            properties["Lines"],
            json!({ "Fn::Join": ["", [
                { "Fn::Sub": "${A} a\n" },
                { "Fn::If": ["C", { "Fn::Sub": "${Q} b\n" }, ""] },
                { "Fn::Sub": "${Z} c\n" },
            ]] })
        );
        let attribute = |id: &str| json!({ "Fn::GetAtt": format!("{id}.Arn") });
        assert_eq!(
            properties["Statements"],
            json!([
                { "Resource": [attribute("T"), { "Fn::If": ["C", attribute("Q"), none] }] },
                { "Fn::If": ["C", { "Resource": { "Fn::Sub": "${Q.Arn}*" } }, none] },
                { "Resource": { "Fn::If": ["C", { "Ref": "Q" }, { "Ref": "T" }] } },
                { "Fn::If": ["C", { "Resource": [{ "Ref": "Q" }] }, none] },
            ])
        );
    }

    /// A policy with an empty list of resources is not valid.
    #[test]
    fn a_list_that_two_conditions_may_empty_is_left_out() {
        let text = "Resources:\n  Q: { Type: X, Condition: C }\n  R: { Type: X, Condition: D }\n  \
            T: { Type: X, Condition: E }\n  \
            F: { Type: Y, Properties: { S: \
            [{ Resource: [!Ref Q, !Ref R] }, { Resource: [!Ref Q, !Ref T, A] }] } }\n";
        let mut template = yaml::parse(text).unwrap();
        for (condition, implied_by) in [("C", &[][..]), ("D", &[]), ("E", &["C", "D"])] {
            guard(&mut template, condition, implied_by).unwrap();
        }
        let none = json!({ "Ref": "AWS::NoValue" });
        let choose =
            |condition: &str, id: &str| json!({ "Fn::If": [condition, { "Ref": id }, none] });
        assert_eq!(
            template.to_json()["Resources"]["F"]["Properties"]["S"],
            json!([
                { "Fn::If": ["E", { "Resource": [choose("C", "Q"), choose("D", "R")] }, none] },
                { "Resource": [choose("C", "Q"), choose("E", "T"), "A"] },
            ])
        );
    }

    #[test]
    fn a_name_that_cannot_be_left_out_is_an_error() {
        let text = "Resources:\n  Q: { Type: X, Condition: C }\n  F: { Type: Y, Properties: { A: !Ref Q } }\n";
        let error = guard(&mut yaml::parse(text).unwrap(), "C", &["D"]).unwrap_err().to_string();
        assert_eq!(error, "`F` names a resource that exists only with `C`; name it in a list");
    }
}
