//! Parses YAML with `saphyr` into a tree with lines, in which every CloudFormation tag has its long
//! form.

use std::collections::BTreeMap;

use saphyr::{LoadableYamlNode, MarkedYaml, Scalar, YamlData};
use serde_json::Value;

/// A node of a template, and the line that it starts on; 0 if no file has it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Node {
    pub(crate) line: usize,
    pub(crate) kind: Kind,
    /// The lines of the comment above the node, without the sign.
    pub(crate) comment: Vec<String>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Kind {
    /// A null, boolean, number or string.
    Scalar(Value),
    List(Vec<Node>),
    Map(Vec<(String, Node)>),
}

impl Node {
    pub(crate) const fn new(line: usize, kind: Kind) -> Self {
        Self { line, kind, comment: Vec::new() }
    }

    pub(crate) fn string(line: usize, text: impl Into<String>) -> Self {
        Self::new(line, Kind::Scalar(Value::String(text.into())))
    }

    pub(crate) fn list(items: impl IntoIterator<Item = Self>) -> Self {
        Self::new(0, Kind::List(items.into_iter().collect()))
    }

    pub(crate) fn map<K: Into<String>>(entries: impl IntoIterator<Item = (K, Self)>) -> Self {
        let entries = entries.into_iter().map(|(key, node)| (key.into(), node));
        Self::new(0, Kind::Map(entries.collect()))
    }

    /// The node, with the comment above it.
    pub(crate) fn with_comment(mut self, comment: Option<Vec<String>>) -> Self {
        self.comment = comment.unwrap_or_default();
        self
    }

    /// Whether the node is a function of the template language, such as `!Ref`.
    pub(crate) fn is_intrinsic(&self) -> bool {
        match self.entries() {
            [(name, argument)] => {
                name == "Ref"
                    || name.starts_with("Fn::")
                    || name == "Condition" && argument.as_str().is_some()
            }
            _ => false,
        }
    }

    /// Whether the node is `!Ref AWS::NoValue`.
    pub(crate) fn is_no_value(&self) -> bool {
        matches!(self.entries(), [(name, argument)] if name == "Ref" && argument.as_str() == Some("AWS::NoValue"))
    }

    /// Whether a resource is the team's own. `wire` marks those of `deploy.yaml`.
    pub(crate) fn is_own(&self) -> bool {
        let mark = self.descend(&["Metadata", "Ledgerline", "Generated"]);
        mark.and_then(Node::text).as_deref() == Some("false")
    }

    pub(crate) fn as_str(&self) -> Option<&str> {
        match &self.kind {
            Kind::Scalar(value) => value.as_str(),
            Kind::List(_) | Kind::Map(_) => None,
        }
    }

    /// A scalar as CloudFormation passes it on: `true`, `60` and `text` are all text.
    pub(crate) fn text(&self) -> Option<String> {
        match &self.kind {
            Kind::Scalar(Value::String(text)) => Some(text.clone()),
            Kind::Scalar(value @ (Value::Bool(_) | Value::Number(_))) => Some(value.to_string()),
            Kind::Scalar(_) | Kind::List(_) | Kind::Map(_) => None,
        }
    }

    pub(crate) fn entries(&self) -> &[(String, Node)] {
        match &self.kind {
            Kind::Map(entries) => entries,
            Kind::Scalar(_) | Kind::List(_) => &[],
        }
    }

    pub(crate) fn items(&self) -> &[Node] {
        match &self.kind {
            Kind::List(items) => items,
            Kind::Scalar(_) | Kind::Map(_) => &[],
        }
    }

    pub(crate) fn items_mut(&mut self) -> Option<&mut Vec<Node>> {
        match &mut self.kind {
            Kind::List(items) => Some(items),
            Kind::Scalar(_) | Kind::Map(_) => None,
        }
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Node> {
        self.entries().iter().find(|(name, _)| name == key).map(|(_, node)| node)
    }

    pub(crate) fn get_mut(&mut self, key: &str) -> Option<&mut Node> {
        match &mut self.kind {
            Kind::Map(entries) => {
                entries.iter_mut().find(|(name, _)| name == key).map(|(_, node)| node)
            }
            Kind::Scalar(_) | Kind::List(_) => None,
        }
    }

    /// The first entry of a map.
    pub(crate) fn first_mut(&mut self) -> Option<&mut Node> {
        match &mut self.kind {
            Kind::Map(entries) => entries.first_mut().map(|(_, node)| node),
            Kind::Scalar(_) | Kind::List(_) => None,
        }
    }

    /// The node at a path of keys.
    pub(crate) fn descend(&self, keys: &[&str]) -> Option<&Node> {
        keys.iter().try_fold(self, |node, key| node.get(key))
    }

    /// The number of these keys and indexes that lead to a node, and the node of the last one.
    pub(crate) fn deepest(&self, keys: &[&str]) -> (usize, &Node) {
        let mut node = self;
        for (depth, key) in keys.iter().enumerate() {
            let next = node.get(key).or_else(|| node.items().get(key.parse::<usize>().ok()?));
            let Some(next) = next else { return (depth, node) };
            node = next;
        }
        (keys.len(), node)
    }

    /// The node at a path of keys, to change it.
    pub(crate) fn descend_mut(&mut self, keys: &[&str]) -> Option<&mut Node> {
        keys.iter().try_fold(self, |node, key| node.get_mut(key))
    }

    /// The node at a path of keys and indexes such as `Events.Commits.Properties[0]`, or the
    /// closest node above it.
    pub(crate) fn closest(&self, path: &serde_path_to_error::Path) -> &Node {
        use serde_path_to_error::Segment;
        let mut node = self;
        for segment in path {
            let next = match segment {
                Segment::Map { key } => node.get(key),
                Segment::Seq { index } => node.items().get(*index),
                Segment::Enum { .. } | Segment::Unknown => None,
            };
            match next {
                Some(next) => node = next,
                None => break,
            }
        }
        node
    }

    pub(crate) fn to_json(&self) -> Value {
        match &self.kind {
            Kind::Scalar(value) => value.clone(),
            Kind::List(items) => items.iter().map(Node::to_json).collect(),
            Kind::Map(entries) => Value::Object(
                entries.iter().map(|(key, node)| (key.clone(), node.to_json())).collect(),
            ),
        }
    }
}

impl From<&str> for Node {
    fn from(text: &str) -> Self {
        Self::string(0, text)
    }
}

impl From<String> for Node {
    fn from(text: String) -> Self {
        Self::string(0, text)
    }
}

/// Merges values over those of a base: maps by key, everything else as a whole. An intrinsic is a
/// whole, although it is a map of one entry. `!Ref AWS::NoValue` removes an entry of the base.
pub(crate) fn merge(base: Node, over: Node) -> Node {
    let line = if over.line == 0 { base.line } else { over.line };
    let is_whole = base.is_intrinsic() || over.is_intrinsic();
    match (base.kind, over.kind) {
        (Kind::Map(mut entries), Kind::Map(others)) if !is_whole => {
            for (key, other) in others {
                match entries.iter().position(|(known, _)| *known == key) {
                    Some(place) if other.is_no_value() => _ = entries.remove(place),
                    Some(place) => {
                        let base = std::mem::replace(&mut entries[place].1, Node::list([]));
                        entries[place].1 = merge(base, other);
                    }
                    None => entries.push((key, other)),
                }
            }
            let comment = if over.comment.is_empty() { base.comment } else { over.comment };
            Node { line, kind: Kind::Map(entries), comment }
        }
        (_, kind) => Node { line, kind, comment: over.comment },
    }
}

/// Fills the entries that a value lacks from defaults. `!Ref AWS::NoValue` in the value removes the
/// default.
pub(crate) fn fill(own: Node, defaults: &Node) -> Node {
    let is_whole = own.is_intrinsic() || defaults.is_intrinsic();
    match (own.kind, &defaults.kind) {
        (Kind::Map(mut entries), Kind::Map(others)) if !is_whole => {
            for (key, default) in others {
                match entries.iter().position(|(known, _)| known == key) {
                    Some(place) if entries[place].1.is_no_value() => _ = entries.remove(place),
                    Some(place) => {
                        let own = std::mem::replace(&mut entries[place].1, Node::list([]));
                        entries[place].1 = fill(own, default);
                    }
                    None => entries.push((key.clone(), default.clone())),
                }
            }
            Node { line: own.line, kind: Kind::Map(entries), comment: own.comment }
        }
        (kind, _) => Node { line: own.line, kind, comment: own.comment },
    }
}

/// The comments of a text that belong to no node yet, by the line below them.
type Comments = BTreeMap<usize, Vec<String>>;

/// Parses one document.
///
/// # Errors
/// The line, and a description of the problem.
pub(crate) fn parse(text: &str) -> Result<Node, (usize, String)> {
    parse_with(text, Comments::new())
}

/// Parses one document, with the comment above each node.
///
/// # Errors
/// The line, and a description of the problem.
pub(crate) fn parse_commented(text: &str) -> Result<Node, (usize, String)> {
    let mut comments = Comments::new();
    let mut above = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        match line.strip_prefix('#') {
            Some(comment) => above.push(comment.strip_prefix(' ').unwrap_or(comment).to_owned()),
            None if !line.is_empty() && !above.is_empty() => {
                comments.insert(number, std::mem::take(&mut above));
            }
            // A blank line parts a heading from a comment.
            None if above.is_empty() => {}
            None => above.push(String::new()),
        }
    }
    parse_with(text, comments)
}

fn parse_with(text: &str, mut comments: Comments) -> Result<Node, (usize, String)> {
    let documents = MarkedYaml::load_from_str(text)
        .map_err(|error| (error.marker().line(), error.info().to_owned()))?;
    match documents.first() {
        Some(document) => node(document, &mut comments),
        None => Err((1, "it is empty".into())),
    }
}

fn node(yaml: &MarkedYaml<'_>, comments: &mut Comments) -> Result<Node, (usize, String)> {
    let line = yaml.span.start.line();
    let kind = match &yaml.data {
        YamlData::Value(scalar) => Kind::Scalar(match scalar {
            Scalar::Null => Value::Null,
            Scalar::Boolean(value) => (*value).into(),
            Scalar::Integer(value) => (*value).into(),
            Scalar::FloatingPoint(value) => value.into_inner().into(),
            Scalar::String(value) => value.as_ref().into(),
        }),
        YamlData::Sequence(items) => {
            let mut list = Vec::new();
            for item in items {
                let comment = comments.remove(&item.span.start.line());
                list.push(node(item, comments)?.with_comment(comment));
            }
            Kind::List(list)
        }
        YamlData::Mapping(entries) => {
            let mut map = Vec::new();
            for (key, value) in entries {
                let comment = comments.remove(&key.span.start.line());
                let key = node(key, comments)?;
                let name = key.text().ok_or((key.line, "a key must be text".to_owned()))?;
                map.push((name, node(value, comments)?.with_comment(comment)));
            }
            Kind::Map(map)
        }
        YamlData::Tagged(tag, inner) => {
            let name = match tag.suffix.as_ref() {
                plain @ ("Ref" | "Condition") => plain.to_owned(),
                function => format!("Fn::{function}"),
            };
            let mut inner = node(inner, comments)?;
            if inner.line == 0 {
                inner.line = line;
            }
            Kind::Map(vec![(name, inner)])
        }
        YamlData::Representation(..) | YamlData::Alias(_) | YamlData::BadValue => {
            return Err((line, "this kind of YAML is not supported".into()));
        }
    };
    Ok(Node::new(line, kind))
}
