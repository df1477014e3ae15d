//! Parses YAML with `saphyr` into a tree with lines, in which every CloudFormation tag has its long
//! form.

use saphyr::{LoadableYamlNode, MarkedYaml, Scalar, YamlData};
use serde_json::Value;

/// A node of the template and the line that it starts on.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Node {
    pub(crate) line: usize,
    pub(crate) kind: Kind,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Kind {
    /// A null, boolean, number or string.
    Scalar(Value),
    List(Vec<Node>),
    Map(Vec<(String, Node)>),
}

impl Node {
    pub(crate) fn string(line: usize, text: impl Into<String>) -> Self {
        Self { line, kind: Kind::Scalar(Value::String(text.into())) }
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

    pub(crate) fn get(&self, key: &str) -> Option<&Node> {
        self.entries().iter().find(|(name, _)| name == key).map(|(_, node)| node)
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

/// Parses one document.
///
/// # Errors
/// The line, and a description of the problem.
pub(crate) fn parse(text: &str) -> Result<Node, (usize, String)> {
    let documents = MarkedYaml::load_from_str(text)
        .map_err(|error| (error.marker().line(), error.info().to_owned()))?;
    match documents.first() {
        Some(document) => node(document),
        None => Err((1, "it is empty".into())),
    }
}

fn node(yaml: &MarkedYaml<'_>) -> Result<Node, (usize, String)> {
    let line = yaml.span.start.line();
    let kind = match &yaml.data {
        YamlData::Value(scalar) => Kind::Scalar(match scalar {
            Scalar::Null => Value::Null,
            Scalar::Boolean(value) => (*value).into(),
            Scalar::Integer(value) => (*value).into(),
            Scalar::FloatingPoint(value) => value.into_inner().into(),
            Scalar::String(value) => value.as_ref().into(),
        }),
        YamlData::Sequence(items) => Kind::List(items.iter().map(node).collect::<Result<_, _>>()?),
        YamlData::Mapping(entries) => {
            let mut map = Vec::new();
            for (key, value) in entries {
                let key = node(key)?;
                let name = key.text().ok_or((key.line, "a key must be text".to_owned()))?;
                map.push((name, node(value)?));
            }
            Kind::Map(map)
        }
        YamlData::Tagged(tag, inner) => {
            let name = match tag.suffix.as_ref() {
                plain @ ("Ref" | "Condition") => plain.to_owned(),
                function => format!("Fn::{function}"),
            };
            let mut inner = node(inner)?;
            if inner.line == 0 {
                inner.line = line;
            }
            Kind::Map(vec![(name, inner)])
        }
        YamlData::Representation(..) | YamlData::Alias(_) | YamlData::BadValue => {
            return Err((line, "this kind of YAML is not supported".into()));
        }
    };
    Ok(Node { line, kind })
}
