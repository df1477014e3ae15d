//! Checks that the policies of operators suffice for the tool.

use std::collections::BTreeMap;

use ledgerline::manifest::SubscriberKind;

use crate::{
    functions::{Function, Template},
    policy,
};

/// Finds views and subscriptions that no operator may invoke, as a rebuild and a repair do. The
/// policies allow it by the ends of names.
pub(super) fn problems(template: &Template<'_>) -> Vec<String> {
    let Ok(resolved) = template.source.template(&BTreeMap::new(), "http://127.0.0.1") else {
        return Vec::new();
    };
    let policies: Vec<_> = resolved.operators.into_iter().map(|(_, policy)| policy).collect();
    let may_invoke = |id: &str| {
        let function = resolved.functions.iter().find(|function| function.id == id);
        function.is_none_or(|function| {
            let live = format!("{}:live", function.arn);
            policy::allows(&policies, "lambda:InvokeFunction", &live, &[]).unwrap_or(false)
        })
    };
    let is_out_of_reach = |function: &&Function<'_>| {
        let kind = function.manifest.subscriber.as_ref().map(|subscriber| subscriber.kind);
        kind.is_some_and(|kind| kind != SubscriberKind::ProcessManager) && !may_invoke(function.id)
    };
    let message = "OperatorPolicy does not allow the tool to invoke it: end its name with \
                   ProjectorFunction or SubscriptionFunction";
    let functions = template.functions.iter().filter(|_| !policies.is_empty());
    functions
        .filter(is_out_of_reach)
        .map(|function| template.problem(function.id, &[], message))
        .collect()
}
