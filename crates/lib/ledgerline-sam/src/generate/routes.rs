//! Generates the events of a function from its manifest: its routes behind the HTTP API, and the
//! pattern of its rule on the bus.

use std::collections::BTreeSet;

use anyhow::{Result, bail};
use ledgerline::{
    STATE_REPUBLISHED,
    manifest::{Endpoint, Name, Source},
};

use super::value::reference;
use crate::{
    blocks::resource_around,
    functions::{Template, capitalize},
    lookup::{event_source, scope_prefix},
    yaml::Node,
};

/// The events of the function that contains the last of these lines: one for each route.
pub(super) fn events(template: &Template<'_>, before: &[&str]) -> Result<Vec<String>, String> {
    let id = resource_around(before);
    let function = template.functions.iter().find(|function| function.id == id);
    let endpoints = match function.map(|function| &function.manifest.source) {
        Some(Source::Http(endpoints)) => endpoints,
        _ => return Err(format!("the generated block `routes` is in `{id}`, which has no route")),
    };
    let prefix = scope_prefix(template.json)
        .ok_or("the template has no scopes: add an AWS::Cognito::UserPoolResourceServer")?;
    let mut names = BTreeSet::new();
    let mut lines = Vec::new();
    for Endpoint { route, scope } in endpoints {
        let name = name(route);
        if !names.insert(name.clone()) {
            return Err(format!(
                "two routes of `{id}` have the event name `{name}`: write the events by hand"
            ));
        }
        let (method, path) = route.split_once(' ').unwrap_or_default();
        lines.extend([
            format!("{name}:"),
            "  Type: HttpApi".to_owned(),
            "  Properties:".to_owned(),
            "    ApiId: !Ref HttpApi".to_owned(),
            format!("    Method: {method}"),
            format!("    Path: \"{path}\""),
            format!("    Auth: {{ AuthorizationScopes: [{prefix}/{}] }}", scope.as_str()),
        ]);
    }
    Ok(lines)
}

/// The pattern of the rule of the function that contains the last of these lines.
pub(super) fn pattern(template: &Template<'_>, before: &[&str]) -> Result<Vec<String>, String> {
    let id = resource_around(before);
    let function = template.functions.iter().find(|function| function.id == id);
    let Some(Source::States { category, events, .. }) =
        function.map(|function| &function.manifest.source)
    else {
        return Err(format!(
            "the generated block `Pattern` is in `{id}`, which is not a state projector"
        ));
    };
    let source = event_source(template.json)
        .ok_or("the fanout has no text EVENT_SOURCE: write the pattern by hand")?;
    let heads = [
        "Pattern:".to_owned(),
        format!("  source: [{source}.{category}]"),
        "  detail-type:".to_owned(),
    ];
    // The types are in quotation marks, because YAML does not read words such as `On` as text.
    Ok(heads
        .into_iter()
        .chain(types(events).iter().map(|event| format!("    - \"{event}\"")))
        .collect())
}

/// The types of events that a rule sends to a state projector.
fn types(events: &BTreeSet<Name>) -> BTreeSet<&str> {
    events.iter().map(|event| &**event).chain([STATE_REPUBLISHED]).collect()
}

/// The events of a function with these routes.
///
/// # Errors
/// When two routes have one name.
pub(super) fn nodes(endpoints: &[Endpoint], prefix: &str, function: &str) -> Result<Node> {
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
            ("ApiId", reference("HttpApi")),
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
