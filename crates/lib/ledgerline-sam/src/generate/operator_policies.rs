//! Names the resources of the policies of operators, and continues a policy that is too long in
//! another one.

use std::collections::BTreeSet;

use ledgerline::manifest::SubscriberKind;
use serde_json::{Value, json};

use super::{
    stores,
    value::{attribute, reference, substitution},
};
use crate::{
    functions::{Function, Template, table_of_variable},
    longest::{MANAGED, longest},
    lookup::{BODIES, resources},
    template::OPERATORS,
    yaml::{Kind, Node},
};

/// The path to the statements of a policy.
const STATEMENTS: [&str; 3] = ["Properties", "PolicyDocument", "Statement"];

/// Lists the resources in the generated policies of operators. No pattern of names would do:
/// CloudFormation cuts long names.
pub(super) fn list_resources(
    all: &mut Node,
    template: &Template<'_>,
    is_own: impl Fn(&str) -> bool,
) {
    let Kind::Map(entries) = &mut all.kind else { return };
    let expand = |(id, node): (String, Node)| match OPERATORS.contains(&&*id) && !is_own(&id) {
        true => policies(template, &id, &node),
        false => vec![(id, node)],
    };
    *entries = std::mem::take(entries).into_iter().flat_map(expand).collect();
}

/// A policy with its lists, and the policies that continue it.
fn policies(template: &Template<'_>, id: &str, policy: &Node) -> Vec<(String, Node)> {
    let statements = policy.descend(&STATEMENTS).map_or(&[][..], Node::items);
    let documents = documents(template, statements).into_iter().enumerate();
    let policies = documents.map(|(place, statements)| {
        let mut policy = policy.clone();
        if let Some(node) = policy.descend_mut(&STATEMENTS) {
            node.kind = Kind::List(statements);
        }
        if place == 0 {
            return (id.to_owned(), policy);
        }
        let comment = format!("Continues {id}, because IAM allows {MANAGED} characters.");
        (format!("{id}{}", place + 1), policy.with_comment(Some(vec![comment])))
    });
    policies.collect()
}

/// The statements of each policy: as many as IAM allows. A statement may continue in the next
/// policy.
fn documents(template: &Template<'_>, statements: &[Node]) -> Vec<Vec<Node>> {
    let mut documents = vec![Vec::new()];
    for statement in statements {
        for (place, part) in parts(template, statement).into_iter().enumerate() {
            let last = documents.pop().unwrap_or_default();
            let longer = match place {
                0 => [last.clone(), vec![part.clone()]].concat(),
                _ => extend_last(last.clone(), &part),
            };
            let statements: Value = longer.iter().map(Node::to_json).collect();
            let document = json!({ "Version": "2012-10-17", "Statement": statements });
            if longest(template.json, &document) <= MANAGED {
                documents.push(longer);
            } else {
                documents.extend([last, vec![part]].into_iter().filter(|it| !it.is_empty()));
            }
        }
    }
    documents
}

/// A statement for each of its resources; the statement itself if it has no list of them.
fn parts(template: &Template<'_>, statement: &Node) -> Vec<Node> {
    let Some(Kind::List(words)) = statement.get("Resource").map(|resource| &resource.kind) else {
        return vec![statement.clone()];
    };
    let arns = words.iter().flat_map(|word| arns(template, word));
    let part = |arn| {
        let mut part = statement.clone();
        if let Some(resource) = part.get_mut("Resource") {
            resource.kind = Kind::List(vec![arn]);
        }
        part
    };
    arns.map(part).collect()
}

/// Adds the resource of another part of a statement to its last part.
fn extend_last(mut statements: Vec<Node>, part: &Node) -> Vec<Node> {
    let last = statements.last_mut().and_then(|last| last.get_mut("Resource")?.items_mut());
    if let Some((last, more)) = last.zip(part.get("Resource")) {
        last.extend(more.items().iter().cloned());
    }
    statements
}

/// The ARNs of the resources that a word of the part stands for; any other value as it is.
fn arns(template: &Template<'_>, word: &Node) -> Vec<Node> {
    let list = |kinds, rest, is_meant: fn(&str) -> bool| -> Vec<_> {
        let found = resources(template.json, kinds).filter(|(id, _)| is_meant(id));
        found.map(|(id, _)| arn(template, id, rest)).collect()
    };
    let maintainers = template.functions.iter().filter(|function| maintains_view(function));
    match word.as_str() {
        // A request that names a version or an alias needs the ARN with it.
        Some("functions") => {
            list(&["AWS::Serverless::Function", "AWS::Lambda::Function"], "*", |_| true)
        }
        Some("tables") => list(&["AWS::DynamoDB::Table"], "", |_| true),
        Some("bodies") => list(&["AWS::S3::Bucket"], "/bodies/*", |id| id == BODIES),
        Some("bucket of bodies") => list(&["AWS::S3::Bucket"], "", |id| id == BODIES),
        Some("queues") => list(&["AWS::SQS::Queue"], "", |id| !is_dead_letter_queue(id)),
        Some("dead-letter queues") => list(&["AWS::SQS::Queue"], "", is_dead_letter_queue),
        Some("maintainers of views") => {
            maintainers.map(|function| arn(template, function.id, ":live")).collect()
        }
        Some(word @ ("views" | "views in other stores")) => {
            let is_in_other_store = word != "views";
            let table = |function: &Function<'_>| {
                let subscriber = function.manifest.subscriber.as_ref()?;
                let subscriber =
                    Some(subscriber).filter(|it| it.view.is_some() == is_in_other_store)?;
                table_of_variable(template, function, &subscriber.table).map(ToOwned::to_owned)
            };
            let tables: BTreeSet<_> = maintainers.filter_map(table).collect();
            tables.iter().map(|table| arn(template, table, "")).collect()
        }
        _ => vec![word.clone()],
    }
}

/// The queues that `ledger dead-letters` reads.
fn is_dead_letter_queue(id: &str) -> bool {
    id.ends_with("DeadLetterQueue")
}

/// Whether the tool may invoke the function, which writes rows and acts on nothing else.
fn maintains_view(function: &Function<'_>) -> bool {
    let subscriber = function.manifest.subscriber.as_ref();
    subscriber.is_some_and(|subscriber| subscriber.kind != SubscriberKind::ProcessManager)
}

/// The ARN of a resource, followed by `rest`. A resource with a condition may be missing.
fn arn(template: &Template<'_>, id: &str, rest: &str) -> Node {
    let arn = match rest {
        "" => attribute(&format!("{id}.Arn")),
        rest => substitution(format!("${{{id}.Arn}}{rest}")),
    };
    match template.json["Resources"][id]["Condition"].as_str() {
        // `conditions::guard` guards the references to resources with this condition.
        Some(condition) if stores::conditions().iter().all(|(known, _)| *known != condition) => {
            Node::map([("Fn::If", Node::list([condition.into(), arn, reference("AWS::NoValue")]))])
        }
        Some(_) | None => arn,
    }
}
