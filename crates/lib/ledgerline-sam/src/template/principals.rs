//! Resolves the policies of principals: as the local stack evaluates them, and as wide as they can
//! be.

use serde_json::Value;

use super::{
    Located, Role, UNREAD,
    intrinsics::{Scope, resource_type},
};
use crate::{
    lookup::list,
    yaml::{Kind, Node},
};

impl Scope<'_> {
    /// The role that a function names: `!GetAtt <name>Role.Arn`.
    pub(super) fn role(&self, role: &Node) -> Located<Role> {
        let resource = |node: &Node, kind: &str| -> Located<(String, Node)> {
            let attribute = node.get("Fn::GetAtt").map(|path| path.items().first().unwrap_or(path));
            let id = attribute.or(node.get("Ref")).and_then(Node::as_str).unwrap_or_default();
            let id = id.split('.').next().unwrap_or_default();
            let found =
                self.resources()?.iter().find(|(name, _)| name == id).map(|(_, resource)| resource);
            match found.filter(|found| found.get("Type").and_then(Node::as_str) == Some(kind)) {
                Some(found) => Ok((id.to_owned(), self.properties(id, found)?)),
                None => Err((node.line, format!("it names no {kind} of the template"))),
            }
        };
        let (id, properties) = resource(role, "AWS::IAM::Role")?;
        let mut policies: Vec<_> = properties
            .get("Policies")
            .map_or(&[][..], Node::items)
            .iter()
            .filter_map(|policy| Some(policy.get("PolicyDocument")?.to_json()))
            .collect();
        // The unresolved list is read, because its resolved values would be names, which do not
        // lead to the policies.
        let written =
            self.resources()?.iter().find(|(name, _)| *name == id).map(|(_, resource)| resource);
        let managed = written.and_then(|role| role.get("Properties")?.get("ManagedPolicyArns"));
        for policy in managed.map_or(&[][..], Node::items) {
            let (_, properties) = resource(policy, "AWS::IAM::ManagedPolicy")?;
            policies.extend(properties.get("PolicyDocument").map(Node::to_json));
        }
        for (other, policy) in self.resources()? {
            let role = policy.descend(&["Properties", "RoleName", "Ref"]).and_then(Node::as_str);
            if resource_type(other, policy)? == "AWS::IAM::RolePolicy"
                && role == Some(&id)
                && self.is_there(policy)?
            {
                let properties = self.properties(other, policy)?;
                policies.extend(properties.get("PolicyDocument").map(Node::to_json));
            }
        }
        Ok(Role { name: format!("{}-{id}", self.stack), policies })
    }

    pub(super) fn statements(&self) -> Located<Vec<(String, Value)>> {
        let mut statements = Vec::new();
        for (id, resource) in self.resources()? {
            let Some(properties) = resource.get("Properties") else { continue };
            let properties = self.widest(properties).to_json();
            let policies = match resource_type(id, resource)? {
                "AWS::IAM::GroupPolicy"
                | "AWS::IAM::ManagedPolicy"
                | "AWS::IAM::Policy"
                | "AWS::IAM::RolePolicy"
                | "AWS::IAM::UserPolicy" => vec![&properties],
                "AWS::IAM::Group" | "AWS::IAM::Role" | "AWS::IAM::User" => {
                    list(&properties["Policies"])
                }
                _ => continue,
            };
            let documents = policies.into_iter().flat_map(|policy| list(&policy["PolicyDocument"]));
            let of_document = documents.flat_map(|document| list(&document["Statement"]));
            statements.extend(of_document.map(|statement| (id.clone(), statement.clone())));
        }
        Ok(statements)
    }

    /// Returns a value with both sides of each `Fn::If`, and with [`UNREAD`] for each part that
    /// cannot be resolved.
    fn widest(&self, node: &Node) -> Node {
        let line = node.line;
        let sides = |node: &Node| -> Option<Vec<Node>> {
            let [(function, argument)] = node.entries() else { return None };
            let sides = argument.items().get(1..).filter(|_| function == "Fn::If")?;
            let sides = sides.iter().filter(|side| !side.is_no_value());
            let wide = sides.map(|side| self.widest(side)).flat_map(|side| match side.kind {
                Kind::List(items) => items,
                Kind::Map(_) | Kind::Scalar(_) => vec![side],
            });
            Some(wide.collect())
        };
        match &node.kind {
            Kind::Scalar(_) => node.clone(),
            Kind::List(items) => {
                let item = |item: &Node| sides(item).unwrap_or_else(|| vec![self.widest(item)]);
                Node::new(line, Kind::List(items.iter().flat_map(item).collect()))
            }
            Kind::Map(entries) => {
                if let Some(sides) = sides(node) {
                    return Node::new(line, Kind::List(sides));
                }
                if let [(function, argument)] = entries.as_slice()
                    && (function == "Ref" || function.starts_with("Fn::"))
                {
                    let resolved = self.call(function, argument);
                    return resolved.unwrap_or_else(|_| Node::string(line, UNREAD));
                }
                let entry = |(name, value): &(String, Node)| (name.clone(), self.widest(value));
                Node::new(line, Kind::Map(entries.iter().map(entry).collect()))
            }
        }
    }
}
