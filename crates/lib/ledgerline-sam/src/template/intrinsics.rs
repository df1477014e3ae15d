//! The functions of the template language, and the names that a deployment would give resources.

use std::collections::{BTreeMap, HashMap};

use regex_lite::Regex;
use serde_json::Value;

use super::{ACCOUNT, Located, REGION, Source};
use crate::yaml::{Kind, Node};

/// Returns the domain name of a distribution.
pub(super) fn domain(id: &str) -> String {
    format!("{}.cloudfront.net", id.to_lowercase())
}

/// Returns the reason why a parameter does not allow a value. As in CloudFormation, a pattern must
/// match the whole value.
fn misfit(parameter: &Node, value: &str) -> Option<String> {
    let listed = parameter.get("AllowedValues").map_or(&[][..], Node::items);
    let listed: Vec<_> = listed.iter().filter_map(Node::text).collect();
    if !listed.is_empty() && !listed.iter().any(|allowed| allowed == value) {
        return Some(format!("choose one of: {}", listed.join(", ")));
    }
    let pattern = parameter.get("AllowedPattern").and_then(Node::text)?;
    match Regex::new(&format!("^(?:{pattern})$")) {
        Ok(known) if known.is_match(value) => None,
        Ok(_) => {
            let described = parameter.get("ConstraintDescription").and_then(Node::text);
            let expected = described.unwrap_or_else(|| format!("a text that matches `{pattern}`"));
            Some(format!("expected {expected}"))
        }
        // CloudFormation knows more patterns, such as those that look ahead, and checks them itself.
        Err(_) => None,
    }
}

/// A template with the values of its parameters.
pub(super) struct Scope<'a> {
    pub(super) root: &'a Node,
    pub(super) stack: &'a str,
    parameters: HashMap<String, Value>,
    sqs_url: &'a str,
    /// Whether an attribute that is not emulated, of a resource of the team's own, has its path as
    /// value. A check of rights must see that the value is unknown.
    has_paths: bool,
}

impl<'a> Scope<'a> {
    pub(super) fn new(
        source: &'a Source,
        overrides: &BTreeMap<String, String>,
        sqs_url: &'a str,
    ) -> Located<Self> {
        let Source { root, stack, .. } = source;
        let declared = root.get("Parameters").map_or(&[][..], Node::entries);
        for name in overrides.keys() {
            if !declared.iter().any(|(parameter, _)| parameter == name) {
                return Err((
                    root.get("Parameters").map_or(root.line, |node| node.line),
                    format!("there is no parameter {name}"),
                ));
            }
        }
        let mut parameters = HashMap::new();
        for (name, parameter) in declared {
            let value = overrides
                .get(name)
                .cloned()
                .or_else(|| parameter.get("Default").and_then(Node::text))
                .ok_or((
                    parameter.line,
                    format!("parameter `{name}` has no default: give it a value"),
                ))?;
            if let Some(problem) = misfit(parameter, &value) {
                let message = format!("parameter `{name}` does not allow `{value}`: {problem}");
                return Err((parameter.line, message));
            }
            let kind = parameter.get("Type").and_then(Node::as_str);
            if kind == Some("CommaDelimitedList") {
                let values = value.split(',').map(str::trim).filter(|value| !value.is_empty());
                parameters.insert(name.clone(), values.map(Value::from).collect());
                continue;
            }
            let number = kind == Some("Number");
            let value = match value.parse::<i64>() {
                Ok(value) if number => value.into(),
                Err(_) if number => {
                    return Err((
                        parameter.line,
                        format!("parameter {name} must be a whole number"),
                    ));
                }
                Ok(_) | Err(_) => Value::String(value),
            };
            parameters.insert(name.clone(), value);
        }
        Ok(Self { root, stack, parameters, sqs_url, has_paths: false })
    }

    pub(super) fn with_paths(self) -> Self {
        Self { has_paths: true, ..self }
    }

    pub(super) fn physical(&self, id: &str, line: usize) -> Located<Physical> {
        let resource =
            self.resources()?.iter().find(|(name, _)| name == id).map(|(_, resource)| resource);
        let resource = resource.ok_or((line, format!("there is no resource or parameter {id}")))?;
        let property = |name: &str| -> Located<Option<String>> {
            let node = resource.get("Properties").and_then(|properties| properties.get(name));
            Ok(node.map(|node| self.resolve(node)).transpose()?.and_then(|node| node.text()))
        };
        let named = |given: Option<String>, suffix: &str| {
            given.unwrap_or_else(|| format!("{}-{id}{suffix}", self.stack))
        };
        let kind = resource_type(id, resource)?;
        Ok(match kind {
            "AWS::DynamoDB::Table" => {
                let name = named(property("TableName")?, "");
                let arn = format!("arn:aws:dynamodb:{REGION}:{ACCOUNT}:table/{name}");
                Physical { reference: name.clone(), name, arn }
            }
            "AWS::SQS::Queue" => {
                let fifo = property("FifoQueue")?.is_some_and(|fifo| fifo == "true");
                let name = named(property("QueueName")?, if fifo { ".fifo" } else { "" });
                let arn = format!("arn:aws:sqs:{REGION}:{ACCOUNT}:{name}");
                Physical { reference: format!("{}/{ACCOUNT}/{name}", self.sqs_url), name, arn }
            }
            "AWS::Events::EventBus" => {
                let name = named(property("Name")?, "");
                let arn = format!("arn:aws:events:{REGION}:{ACCOUNT}:event-bus/{name}");
                Physical { reference: name.clone(), name, arn }
            }
            "AWS::S3::Bucket" => {
                // CloudFormation makes a name of lowercase letters.
                let name = named(property("BucketName")?, "").to_lowercase();
                let arn = format!("arn:aws:s3:::{name}");
                Physical { reference: name.clone(), name, arn }
            }
            "AWS::Serverless::Function" => {
                let name = named(property("FunctionName")?, "");
                let arn = format!("arn:aws:lambda:{REGION}:{ACCOUNT}:function:{name}");
                Physical { reference: name.clone(), name, arn }
            }
            _ => Physical {
                reference: id.to_owned(),
                name: id.to_owned(),
                arn: format!("arn:aws:local:::{id}"),
            },
        })
    }

    pub(super) fn reference(&self, name: &str, line: usize) -> Located<Node> {
        if let Some(value) = self.parameters.get(name) {
            let scalar = |value: &Value| Node::new(line, Kind::Scalar(value.clone()));
            return Ok(match value.as_array() {
                Some(values) => Node::new(line, Kind::List(values.iter().map(scalar).collect())),
                None => scalar(value),
            });
        }
        let value = match name {
            "AWS::Region" => REGION.into(),
            "AWS::AccountId" => ACCOUNT.into(),
            "AWS::StackName" => self.stack.into(),
            "AWS::Partition" => "aws".into(),
            "AWS::URLSuffix" => "amazonaws.com".into(),
            // The alias under which SAM publishes a function.
            alias if alias.ends_with(".Alias") => {
                format!("{}:live", self.physical(alias.trim_end_matches(".Alias"), line)?.arn)
            }
            _ => self.physical(name, line)?.reference,
        };
        Ok(Node::string(line, value))
    }

    pub(super) fn attribute(&self, path: &str, line: usize) -> Located<String> {
        let (id, attribute) = path
            .split_once('.')
            .ok_or((line, format!("GetAtt needs a resource and an attribute, not {path}")))?;
        let physical = self.physical(id, line)?;
        match attribute {
            "Arn" => Ok(physical.arn),
            "StreamArn" => Ok(stream_arn(&physical.arn)),
            "QueueName" | "Name" => Ok(physical.name),
            "QueueUrl" => Ok(physical.reference),
            "DomainName" => Ok(domain(id)),
            _ if self.has_paths
                && self.root.descend(&["Resources", id]).is_some_and(Node::is_own) =>
            {
                Ok(path.to_owned())
            }
            other => Err((line, format!("the attribute {other} of {id} is not emulated"))),
        }
    }

    pub(super) fn resolve(&self, node: &Node) -> Located<Node> {
        let line = node.line;
        match &node.kind {
            Kind::Scalar(_) => Ok(node.clone()),
            Kind::List(items) => {
                let mut resolved = Vec::new();
                for item in items {
                    let item = self.chosen(item)?;
                    if !item.is_no_value() {
                        resolved.push(self.resolve(item)?);
                    }
                }
                Ok(Node::new(line, Kind::List(resolved)))
            }
            Kind::Map(entries) if is_choice(entries) => self.resolve(self.chosen(node)?),
            Kind::Map(entries) => {
                if let [(function, argument)] = entries.as_slice()
                    && (function == "Ref" || function.starts_with("Fn::"))
                {
                    return self.call(function, argument);
                }
                let mut resolved = Vec::new();
                for (name, value) in entries {
                    let value = self.chosen(value)?;
                    if !value.is_no_value() {
                        resolved.push((name.clone(), self.resolve(value)?));
                    }
                }
                Ok(Node::new(line, Kind::Map(resolved)))
            }
        }
    }

    /// The value of an `Fn::If`, which may be `AWS::NoValue`.
    pub(super) fn chosen<'n>(&self, mut node: &'n Node) -> Located<&'n Node> {
        while let [(function, argument)] = node.entries()
            && function == "Fn::If"
        {
            let [condition, yes, no] = argument.items() else {
                return Err((argument.line, "If needs a condition and two values".into()));
            };
            node = if self.condition(condition)? { yes } else { no };
        }
        Ok(node)
    }

    pub(super) fn call(&self, function: &str, argument: &Node) -> Located<Node> {
        let line = argument.line;
        let text = |node: &Node| node.text().ok_or((line, format!("{function} needs text")));
        match function {
            "Ref" => self.reference(&text(argument)?, line),
            "Fn::GetAtt" => {
                let path = match argument.items() {
                    [id, attribute] => format!("{}.{}", text(id)?, text(attribute)?),
                    _ => text(argument)?,
                };
                Ok(Node::string(line, self.attribute(&path, line)?))
            }
            "Fn::Sub" => {
                let (template, variables) = match argument.items() {
                    [template, variables] => (text(template)?, self.resolve(variables)?),
                    _ => (text(argument)?, Node::new(line, Kind::Map(Vec::new()))),
                };
                Ok(Node::string(line, self.substitute(&template, &variables, line)?))
            }
            "Fn::Join" => match argument.items() {
                [separator, list] => {
                    let list = self.resolve(list)?;
                    let parts: Vec<_> = list.items().iter().map(text).collect::<Result<_, _>>()?;
                    Ok(Node::string(line, parts.join(&text(separator)?)))
                }
                _ => Err((line, "Join needs a separator and a list".into())),
            },
            "Fn::Split" => match argument.items() {
                [separator, whole] => {
                    let separator = text(separator)?;
                    let whole = text(&self.resolve(whole)?)?;
                    let part = |part: &str| Node::string(line, part.to_owned());
                    Ok(Node::new(
                        line,
                        Kind::List(whole.split(separator.as_str()).map(part).collect()),
                    ))
                }
                _ => Err((line, "Split needs a separator and a text".into())),
            },
            other => Err((line, format!("{other} is not emulated"))),
        }
    }

    pub(super) fn substitute(
        &self,
        template: &str,
        variables: &Node,
        line: usize,
    ) -> Located<String> {
        let mut result = String::new();
        let mut rest = template;
        while let Some((before, after)) = rest.split_once("${") {
            let (name, after) =
                after.split_once('}').ok_or((line, "Sub has a ${ without }".to_owned()))?;
            result.push_str(before);
            if let Some(literal) = name.strip_prefix('!') {
                result.push_str(&format!("${{{literal}}}"));
            } else if let Some(value) = variables.get(name).and_then(Node::text) {
                result.push_str(&value);
            } else if name.contains('.') {
                result.push_str(&self.attribute(name, line)?);
            } else {
                result.push_str(&self.reference(name, line)?.text().unwrap_or_default());
            }
            rest = after;
        }
        result.push_str(rest);
        Ok(result)
    }

    pub(super) fn condition(&self, node: &Node) -> Located<bool> {
        let line = node.line;
        if let Some(name) = node.as_str() {
            let conditions = self.root.get("Conditions");
            let condition = conditions.and_then(|conditions| conditions.get(name));
            return self
                .condition(condition.ok_or((line, format!("there is no condition {name}")))?);
        }
        let [(function, argument)] = node.entries() else {
            return Err((line, "a condition must be a name or one function".into()));
        };
        let mut all = argument.items().iter().map(|item| self.condition(item));
        match function.as_str() {
            "Condition" => self.condition(argument),
            "Fn::Equals" => match argument.items() {
                [left, right] => Ok(self.resolve(left)?.text() == self.resolve(right)?.text()),
                _ => Err((line, "Equals needs two values".into())),
            },
            "Fn::Not" => all.next().unwrap_or(Ok(false)).map(|value| !value),
            "Fn::And" => all.try_fold(true, |result, value| Ok(result & value?)),
            "Fn::Or" => all.try_fold(false, |result, value| Ok(result | value?)),
            other => Err((line, format!("the condition {other} is not emulated"))),
        }
    }
}

/// The names that a deployment would give a resource.
pub(super) struct Physical {
    pub(super) name: String,
    pub(super) reference: String,
    pub(super) arn: String,
}

pub(super) fn stream_arn(table_arn: &str) -> String {
    format!("{table_arn}/stream/local")
}

pub(super) fn resource_type<'n>(id: &str, resource: &'n Node) -> Located<&'n str> {
    resource.get("Type").and_then(Node::as_str).ok_or((resource.line, format!("{id} has no Type")))
}

pub(super) fn is_choice(entries: &[(String, Node)]) -> bool {
    matches!(entries, [(function, _)] if function == "Fn::If")
}
