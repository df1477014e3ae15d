//! Evaluates IAM policies with `iam-rs`, as IAM does. docs/architecture.md, "Roles on a laptop",
//! lists the limits.

use anyhow::Result;
use iam_rs::{
    Arn, Context, ContextValue, Decision, IAMPolicy, IAMRequest, PolicyEvaluator, Principal,
    PrincipalId,
};
use serde_json::Value;

use crate::template::ACCOUNT;

/// Whether these policies allow an action on a resource, for a request with these values of
/// condition keys.
///
/// # Errors
/// When a policy or the ARN of the resource cannot be read.
pub fn allows(
    policies: &[Value],
    action: &str,
    resource: &str,
    context: &[(&str, bool)],
) -> Result<bool> {
    let evaluator = evaluator(policies)?;
    let resource = Arn::parse(resource)?;
    let mut values = Context::new();
    for (key, value) in context {
        values.insert((*key).to_owned(), ContextValue::Boolean(*value));
    }
    let caller = Principal::Aws(PrincipalId::String(format!("arn:aws:iam::{ACCOUNT}:user/caller")));
    let request = IAMRequest::new_with_context(caller, action.to_owned(), resource, values);
    Ok(evaluator.evaluate(&request)?.decision == Decision::Allow)
}

/// Returns one evaluator for all these policies.
///
/// # Errors
/// When a policy cannot be read.
pub fn evaluator(policies: &[Value]) -> Result<PolicyEvaluator> {
    let read = |policy: &Value| serde_json::from_value::<IAMPolicy>(policy.clone());
    Ok(PolicyEvaluator::with_policies(policies.iter().map(read).collect::<Result<_, _>>()?))
}
