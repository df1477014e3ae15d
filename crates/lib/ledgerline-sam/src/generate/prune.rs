//! Leaves out what the functions of an application do not need.

use std::collections::BTreeSet;

use crate::yaml::{Kind, Node};

/// The part of a stack that lists the clients of the user pool.
const AUDIENCE: [&str; 8] = [
    "Resources",
    "HttpApi",
    "Properties",
    "Auth",
    "Authorizers",
    "Jwt",
    "JwtConfiguration",
    "audience",
];

/// Leaves the scopes that no route requires out of the list of scopes, and the clients that the
/// template lacks out of the audience of the API.
pub(super) fn drop_scopes(template: &mut Node, scopes: &BTreeSet<&str>) {
    let resources = template.get("Resources").map_or(&[][..], Node::entries);
    let resources: BTreeSet<_> = resources.iter().map(|(id, _)| id.clone()).collect();
    let list = ["Resources", "ApiScopes", "Properties", "Scopes"];
    retain(template.descend_mut(&list), |scope| {
        let name = scope.get("ScopeName").and_then(Node::as_str).unwrap_or_default();
        ["read", "write"].contains(&name) || scopes.contains(name)
    });
    let clients = template.descend_mut(&AUDIENCE).and_then(|audience| {
        let join = audience.get_mut("Fn::Split")?.items_mut()?.get_mut(1)?;
        join.get_mut("Fn::Join")?.items_mut()?.get_mut(1)
    });
    retain(clients, |client| {
        let mut names = BTreeSet::new();
        add_references(client, &mut names);
        names.iter().all(|name| !name.ends_with("Client") || resources.contains(name))
    });
}

fn retain(list: Option<&mut Node>, is_kept: impl Fn(&Node) -> bool) {
    if let Some(items) = list.and_then(Node::items_mut) {
        items.retain(is_kept);
    }
}

/// Leaves out the parameters and conditions that nothing refers to. Those of the team's file stay.
pub(super) fn drop_unused(template: &mut Node, team: &Node) {
    let mut names = BTreeSet::new();
    for section in ["Globals", "Resources", "Outputs", "Rules"] {
        template.get(section).into_iter().for_each(|section| add_references(section, &mut names));
    }
    loop {
        let known = names.len();
        let conditions = template.get("Conditions").map_or(&[][..], Node::entries);
        let used = conditions.iter().filter(|(name, _)| names.contains(name));
        let used: Vec<_> = used.map(|(_, condition)| condition.clone()).collect();
        used.iter().for_each(|condition| add_references(condition, &mut names));
        if names.len() == known {
            break;
        }
    }
    for section in ["Parameters", "Conditions"] {
        let own = team.get(section);
        if let Some(Kind::Map(entries)) = template.get_mut(section).map(|node| &mut node.kind) {
            entries.retain(|(name, _)| {
                names.contains(name) || own.is_some_and(|own| own.get(name).is_some())
            });
        }
    }
}

/// Adds the names to which a value refers: parameters, resources and conditions.
fn add_references(node: &Node, names: &mut BTreeSet<String>) {
    for (key, value) in node.entries() {
        match (key.as_str(), value.as_str(), value.items()) {
            ("Ref" | "Condition", Some(name), _) => _ = names.insert(name.to_owned()),
            ("Fn::GetAtt", Some(path), _) => {
                names.extend(path.split('.').next().map(ToOwned::to_owned));
            }
            ("Fn::If", _, [condition, ..]) => {
                names.extend(condition.as_str().map(ToOwned::to_owned));
            }
            _ => {}
        }
        add_references(value, names);
    }
    node.items().iter().for_each(|item| add_references(item, names));
    let text = node.as_str().unwrap_or_default();
    let tokens = text.split("${").skip(1).filter_map(|rest| rest.split(['}', '.']).next());
    names.extend(tokens.map(ToOwned::to_owned));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::yaml;

    #[test]
    fn a_parameter_stays_if_a_used_condition_or_the_team_names_it() {
        let text = "Parameters: { A: {}, B: {}, C: {}, D: {}, E: {} }\n\
            Conditions: { HasA: !Equals [!Ref A, x], HasB: !Equals [!Ref B, x] }\n\
            Resources: { T: { Condition: HasA, Properties: { C: !Sub \"${C}-x\" } } }\n";
        let mut template = yaml::parse(text).unwrap();
        drop_unused(&mut template, &yaml::parse("Parameters: { D: { Default: x } }").unwrap());
        let names = |section: &str| -> Vec<_> {
            let entries = template.get(section).unwrap().entries().iter();
            entries.map(|(name, _)| name.as_str()).collect()
        };
        assert_eq!(names("Parameters"), ["A", "C", "D"]);
        assert_eq!(names("Conditions"), ["HasA"]);
    }
}
