//! Checks that the rights of functions are exactly those that they need.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::{
    functions::Template,
    grants::{self, Permission},
    lookup::{list, logical_id, resources},
    rights::rights,
};

/// Finds missing and needless rights of functions, and roles that no function has.
pub(super) fn problems(template: &Template<'_>) -> Vec<String> {
    let mut problems = unused(template);
    for function in &template.functions {
        let role = logical_id(&function.properties["Role"]).unwrap_or(function.id);
        let place = template.source.place(&["Resources", role, "Properties", "Policies"]);
        let needed = rights(template, function);
        let granted = grants::role_permissions(template.json, role);
        let attached = grants::policy_permissions(template.json, role);
        for (action, resource) in &needed {
            let is_granted = granted.union(&attached).any(|granted| {
                granted.action.eq_ignore_ascii_case(action)
                    && resource.as_deref().is_none_or(|resource| resource == granted.resource)
            });
            if !is_granted {
                let on = resource.as_deref().unwrap_or("the called resource");
                problems.push(format!(
                    "{place}: {role}: {} needs {action} on {on}: allow it",
                    function.id
                ));
            }
        }
        // Rights that no manifest declares, such as those on a customer managed key that encrypts a
        // table.
        let besides = &template.json["Resources"][role]["Metadata"]["Ledgerline"]["Besides"];
        for action in list(besides).into_iter().filter_map(Value::as_str) {
            if !granted.iter().any(|granted| granted.action == action) {
                problems.push(format!(
                    "{place}: {role}: Besides names {action}, which the role does not allow: write the role by hand, with \
                     this statement below a generated block `grants`, or delete the name"
                ));
            }
        }
        for Permission { action, resource: on } in &granted {
            if list(besides).iter().any(|besides| besides.as_str() == Some(action)) {
                continue;
            }
            let is_needed = needed.iter().any(|(needed, resource)| {
                // Every table is known, so a call of an unknown resource justifies no right on a
                // table.
                needed.eq_ignore_ascii_case(action)
                    && resource.as_deref().map_or(!is_of_tables(action), |resource| resource == on)
            });
            if !is_needed {
                problems.push(format!(
                    "{place}: {role}: {} does not need {action} on {on}: delete the right",
                    function.id
                ));
            }
        }
    }
    problems
}

/// Finds roles that Lambda may assume and no function has. A superfluous name in the list of a loop
/// creates such a role.
fn unused(template: &Template<'_>) -> Vec<String> {
    let functions = template.functions.iter();
    let used_roles: BTreeSet<_> =
        functions.filter_map(|function| logical_id(&function.properties["Role"])).collect();
    let unused = resources(template.json, &["AWS::IAM::Role"]).filter(|(id, role)| {
        let trusted = &role["Properties"]["AssumeRolePolicyDocument"];
        !used_roles.contains(id) && trusted.to_string().contains("lambda.amazonaws.com")
    });
    let problem = |(id, _)| {
        let place = template.source.place(&["Resources", id]);
        format!("{place}: {id}: no function has this role: delete it, or its name in the list")
    };
    unused.map(problem).collect()
}

/// Whether an action is one on tables.
fn is_of_tables(action: &str) -> bool {
    action.to_lowercase().starts_with("dynamodb:")
}
