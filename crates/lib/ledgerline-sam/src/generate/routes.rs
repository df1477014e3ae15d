//! Generates the events of a function from its manifest: its routes behind the HTTP API, and the
//! pattern of its rule on the bus.

use std::collections::BTreeSet;

use anyhow::{Result, bail};
use ledgerline::{
    STATE_REPUBLISHED,
    manifest::{Endpoint, Name},
};

use crate::{functions::capitalize, yaml::Node};

/// The types of events that a rule sends to a state projector.
fn types(events: &BTreeSet<Name>) -> BTreeSet<&str> {
    events.iter().map(|event| &**event).chain([STATE_REPUBLISHED]).collect()
}

/// The events of a function with these routes, at this API.
///
/// # Errors
/// When two routes have one name.
pub(super) fn nodes(
    endpoints: &[Endpoint],
    prefix: &str,
    function: &str,
    api: &Node,
) -> Result<Node> {
    let mut names = BTreeSet::new();
    let mut events = Vec::new();
    for Endpoint { route, scope } in endpoints {
        let name = name(route);
        if !names.insert(name.clone()) {
            bail!("two routes of `{function}` have the event name `{name}`: change one path");
        }
        let (method, path) = route.split_once(' ').unwrap_or_default();
        let scopes = Node::list([format!("{prefix}/{}", scope.as_str()).into()]);
        let properties = Node::map([
            ("ApiId", api.clone()),
            ("Method", method.into()),
            ("Path", path.into()),
            ("Auth", Node::map([("AuthorizationScopes", scopes)])),
        ]);
        events.push((name, Node::map([("Type", "HttpApi".into()), ("Properties", properties)])));
    }
    Ok(Node::map(events))
}

/// The pattern of a rule that sends the states of a category.
pub(super) fn pattern_node(source: &str, category: &str, events: &BTreeSet<Name>) -> Node {
    Node::map([
        ("source", Node::list([format!("{source}.{category}").into()])),
        ("detail-type", Node::list(types(events).into_iter().map(Node::from))),
    ])
}

/// The name of the event of a route: that of `GET /items/{id}` is `GetItemsId`.
fn name(route: &str) -> String {
    let words = route.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let upper = |word: &str| match word.chars().any(char::is_lowercase) {
        true => word[..1].to_uppercase() + &word[1..],
        false => capitalize(word),
    };
    words.map(upper).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_event_of_a_route_is_named_after_its_method_and_its_path() {
        for (route, name) in [
            ("GET /items", "GetItems"),
            ("POST /stock-items/{id}/name", "PostStockItemsIdName"),
            ("PUT /users/{id}/follows/{otherId}", "PutUsersIdFollowsOtherId"),
        ] {
            assert_eq!(super::name(route), name);
        }
    }
}
