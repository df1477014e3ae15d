//! Values of the template language.

use crate::yaml::Node;

/// `!Ref`.
pub(super) fn reference(id: &str) -> Node {
    Node::map([("Ref", Node::from(id))])
}

/// `!Sub`.
pub(super) fn substitution(text: String) -> Node {
    Node::map([("Fn::Sub", Node::from(text))])
}

/// `!GetAtt`, with a path such as `ItemsTable.Arn`.
pub(super) fn attribute(path: &str) -> Node {
    Node::map([("Fn::GetAtt", Node::from(path))])
}

/// A text, or a list of several texts.
pub(super) fn one_or_list<'t>(texts: impl IntoIterator<Item = &'t str>) -> Node {
    let mut texts: Vec<_> = texts.into_iter().map(Node::from).collect();
    match texts.len() {
        1 => texts.remove(0),
        _ => Node::list(texts),
    }
}
