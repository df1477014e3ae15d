//! The role of a function on the wire: it denies each action that the function's manifest lacks,
//! as IAM would on AWS.
//!
//! `cargo xtask check` compares each role of a template with its function's manifest. The
//! proofs find a grant that a rare path needs and the manifest lacks.

use std::{collections::BTreeMap, fmt, sync::Arc};

use ledgerline_lambda::needs::{Action, Needs, Table};
use ledgerline_local::iam::Iam;
use ledgerline_testing::table;
use serde_json::{Value, json};

/// The access key of the one caller.
const FUNCTION: &str = "FUNCTION";

/// The rights of a function on its tables.
pub struct Role(Iam);

impl fmt::Debug for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Role")
    }
}

impl Role {
    /// The role of a function with these needs, and with nothing else.
    ///
    /// # Panics
    /// When the policy that is made of the needs is none: a mistake in this program.
    #[must_use]
    #[expect(clippy::expect_used, reason = "the policy is made here")]
    pub fn of(needs: &Needs) -> Arc<Self> {
        let policies = BTreeMap::from([(FUNCTION.to_owned(), vec![policy(needs)])]);
        let tables = needs.tables.iter().map(|needed| (name(needed.variable), needed.partition.to_owned()));
        Arc::new(Self(Iam::of(policies, tables).expect("it is a policy")))
    }

    /// Why the function may not send this request to DynamoDB; `None` if it may.
    pub(crate) fn denies(&self, operation: &str, request: &Value) -> Option<String> {
        self.0.denied(FUNCTION, &format!("DynamoDB_20120810.{operation}"), request)
    }
}

/// The name of the table that this variable names: that of `FILLS_TABLE` is `FillsTable` in the
/// template.
fn name(variable: &str) -> String {
    let word = |word: &str| word[..1].to_owned() + &word[1..].to_ascii_lowercase();
    table(&variable.split('_').map(word).collect::<String>())
}

fn policy(needs: &Needs) -> Value {
    let arn = |variable| format!("arn:aws:dynamodb:us-east-1:000000000000:table/{}", name(variable));
    let mut statements = Vec::new();
    for Table { variable, actions, indexes, .. } in &needs.tables {
        let is_limited =
            |action: &_| needs.keys.iter().any(|keys| keys.variable == *variable && keys.action == *action);
        let free: Vec<_> = actions.iter().filter(|action| !is_limited(action)).collect();
        if !free.is_empty() {
            statements.push(json!({ "Effect": "Allow", "Action": free, "Resource": arn(variable) }));
        }
        let indexes = indexes.iter().map(|index| format!("{}/index/{}", arn(variable), index.name));
        for index in indexes {
            statements.push(json!({ "Effect": "Allow", "Action": "dynamodb:Query", "Resource": index }));
        }
    }
    for keys in &needs.keys {
        let mut condition = json!({ "ForAllValues:StringLike": { "dynamodb:LeadingKeys": keys.like } });
        // As in the template: `Null` stands beside it for each action but this one
        // (docs/decisions/0004).
        if keys.action != Action::PartiQLInsert {
            condition["Null"] = json!({ "dynamodb:LeadingKeys": "false" });
        }
        statements.push(json!({
            "Effect": "Allow", "Action": keys.action, "Resource": arn(keys.variable), "Condition": condition,
        }));
    }
    json!({ "Version": "2012-10-17", "Statement": statements })
}
