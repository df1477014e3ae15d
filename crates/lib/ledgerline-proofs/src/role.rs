//! The role of a function on the wire: it denies each action that the function's manifest lacks,
//! as IAM would on AWS.
//!
//! `cargo xtask wire` makes each role of a template from its function's manifest. The proofs find
//! a grant that a rare path needs and the manifest lacks.

use std::{collections::BTreeMap, fmt, sync::Arc};

use ledgerline::manifest::{Action, Manifest};
use ledgerline_local::iam::Iam;
use ledgerline_testing::table;
use serde_json::{Value, json};

/// The access key of the function, which is the only caller.
const FUNCTION: &str = "FUNCTION";

/// The grants of a function on its tables.
pub(crate) struct Role(Iam);

impl fmt::Debug for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Role")
    }
}

impl Role {
    /// The role of a function with this manifest, and with no other grant.
    #[expect(clippy::expect_used, reason = "the policy is made here")]
    pub(crate) fn new(manifest: &Manifest) -> Arc<Self> {
        let policies = BTreeMap::from([(FUNCTION.to_owned(), vec![policy(manifest)])]);
        let tables = manifest.tables.iter();
        let tables = tables.map(|table| (name(&table.variable), table.partition.to_string()));
        Arc::new(Self(Iam::from_policies(policies, tables).expect("it is a policy")))
    }

    /// The reason for which DynamoDB denies this request to the function; `None` if it allows it.
    pub(crate) fn denies(&self, operation: &str, request: &Value) -> Option<String> {
        self.0.denial(FUNCTION, &format!("DynamoDB_20120810.{operation}"), request)
    }
}

/// The table name in this variable: the table of `FILLS_TABLE` is `FillsTable` in the template.
fn name(variable: &str) -> String {
    let word = |word: &str| word[..1].to_owned() + &word[1..].to_ascii_lowercase();
    table(&variable.split('_').map(word).collect::<String>())
}

fn policy(manifest: &Manifest) -> Value {
    let mut statements = Vec::new();
    for table in &manifest.tables {
        let arn =
            format!("arn:aws:dynamodb:us-east-1:000000000000:table/{}", name(&table.variable));
        for (action, keys) in &table.actions {
            let mut statement = json!({ "Effect": "Allow", "Action": action, "Resource": arn });
            if !keys.is_empty() {
                let mut condition =
                    json!({ "ForAllValues:StringLike": { "dynamodb:LeadingKeys": keys } });
                // As in the template, `Null` is a second condition of each action but this one
                // (docs/decisions.md, 4).
                if *action != Action::PartiQLInsert {
                    condition["Null"] = json!({ "dynamodb:LeadingKeys": "false" });
                }
                statement["Condition"] = condition;
            }
            statements.push(statement);
        }
        for index in &table.indexes {
            let arn = format!("{arn}/index/{}", index.name);
            statements
                .push(json!({ "Effect": "Allow", "Action": "dynamodb:Query", "Resource": arn }));
        }
    }
    json!({ "Version": "2012-10-17", "Statement": statements })
}
