//! The requests of an operator to AWS that are not about data. They read the names of the stack's
//! resources, the lines of the function log and of the access log, and redrive dead letters. The
//! emulation covers the commands of a runbook.
//!
//! Sources: the API references of CloudFormation (the Query protocol), of CloudWatch Logs
//! (`FilterLogEvents`), and of SQS (`StartMessageMoveTask`).

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
};

use anyhow::{Result, anyhow, bail};
use aws_sdk_sqs::types::MessageSystemAttributeName;
use axum::{
    body::Body,
    http::{Response, StatusCode, header::CONTENT_TYPE},
};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use ledgerline_sam::template::{Queue, Resource};

use crate::services::Sqs;

/// Returns the fields of a request in the Query protocol.
pub(crate) fn fields(body: &[u8]) -> Value {
    form_urlencoded::parse(body).collect()
}

/// Answers a request in the Query protocol that its caller may not send.
pub(crate) fn deny(refusal: &Value) -> Response<Body> {
    refuse(StatusCode::FORBIDDEN, "AccessDenied", refusal["message"].as_str().unwrap_or_default())
}

/// Answers a request to CloudFormation: `DescribeStackResource`, `DescribeStackResources`,
/// `ListStackResources`, or `GetTemplate`. The template is the one that the stack read at its
/// start.
pub(crate) fn cloudformation(
    stack: &str,
    resources: &[Resource],
    template: &str,
    fields: &Value,
) -> Response<Body> {
    let field = |name: &str| fields[name].as_str().unwrap_or_default();
    let action = field("Action");
    if field("StackName") != stack {
        return invalid(&format!("the local stack has only the stack {stack}"));
    }
    if action == "GetTemplate" {
        let template = template.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        let body = format!("<TemplateBody>{template}</TemplateBody>");
        return xml(
            StatusCode::OK,
            &format!(
                "<{action}Response><{action}Result>{body}</{action}Result></{action}Response>"
            ),
        );
    }
    let (list, kind) = match action {
        "DescribeStackResource" => ("StackResourceDetail", None),
        "DescribeStackResources" => ("StackResources", Some("member")),
        "ListStackResources" => ("StackResourceSummaries", Some("member")),
        _ => {
            return invalid(
                "here are DescribeStackResource, DescribeStackResources, ListStackResources and GetTemplate",
            );
        }
    };
    let wanted = field("LogicalResourceId");
    let named = |resource: &&Resource| wanted.is_empty() || resource.id == wanted;
    let found: Vec<_> = resources.iter().filter(named).collect();
    if kind.is_none() && found.len() != 1 {
        return invalid("LogicalResourceId names no resource of the stack");
    }
    let now = Timestamp::now();
    let described = found.iter().map(|Resource { id, kind, physical }| {
        format!(
            "<StackName>{stack}</StackName><LogicalResourceId>{id}</LogicalResourceId>\
             <PhysicalResourceId>{physical}</PhysicalResourceId><ResourceType>{kind}</ResourceType>\
             <ResourceStatus>CREATE_COMPLETE</ResourceStatus><Timestamp>{now}</Timestamp>\
             <LastUpdatedTimestamp>{now}</LastUpdatedTimestamp>"
        )
    });
    let described: String = match kind {
        Some(member) => described.map(|one| format!("<{member}>{one}</{member}>")).collect(),
        None => described.collect(),
    };
    xml(
        StatusCode::OK,
        &format!(
            "<{action}Response><{action}Result><{list}>{described}</{list}></{action}Result></{action}Response>"
        ),
    )
}

fn invalid(message: &str) -> Response<Body> {
    refuse(StatusCode::BAD_REQUEST, "ValidationError", message)
}

fn refuse(status: StatusCode, code: &str, message: &str) -> Response<Body> {
    let error = format!("<Type>Sender</Type><Code>{code}</Code><Message>{message}</Message>");
    xml(status, &format!("<ErrorResponse><Error>{error}</Error></ErrorResponse>"))
}

fn xml(status: StatusCode, body: &str) -> Response<Body> {
    let mut response = Response::new(Body::from(body.to_owned()));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, "text/xml".parse().unwrap_or_else(|_| unreachable!()));
    response
}

/// The maximum number of stored lines.
const KEPT: usize = 10_000;

/// The lines of a log, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Logs(Mutex<VecDeque<Line>>);

#[derive(Debug)]
struct Line {
    at: i64,
    function: String,
    message: String,
}

impl Logs {
    /// Stores a line, and drops the oldest line of a full log.
    pub(crate) fn add(&self, function: &str, message: &str) {
        let line = Line {
            at: Timestamp::now().as_millisecond(),
            function: function.to_owned(),
            message: message.to_owned(),
        };
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == KEPT {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    /// Answers `FilterLogEvents` in one page.
    pub(crate) fn filter(&self, body: &[u8]) -> Result<Value> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Filter {
            #[serde(default)]
            start_time: i64,
            #[serde(default)]
            filter_pattern: String,
        }
        let Filter { start_time, filter_pattern } = serde_json::from_slice(body)?;
        let pattern = Pattern::parse(&filter_pattern)?;
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let events: Vec<_> = lines
            .iter()
            .enumerate()
            .filter(|(_, line)| line.at >= start_time && pattern.matches(&line.message))
            .map(|(place, Line { at, function, message })| {
                json!({ "eventId": place.to_string(), "logStreamName": function, "timestamp": at, "ingestionTime": at, "message": message })
            })
            .collect();
        Ok(json!({ "events": events, "searchedLogStreams": [] }))
    }
}

/// Returns the log group that a `FilterLogEvents` request names; empty if the request names none.
pub(crate) fn log_group(body: &[u8]) -> String {
    let request: Value = serde_json::from_slice(body).unwrap_or_default();
    request["logGroupName"].as_str().unwrap_or_default().to_owned()
}

/// A filter pattern of CloudWatch Logs, with the syntax that a runbook needs. It is `"a phrase"`,
/// or `{ $.level = "ERROR" && $.status >= 500 || … }`.
#[derive(Debug, PartialEq)]
enum Pattern {
    Phrase(String),
    /// Alternatives: a line matches if all conditions of one alternative hold.
    Json(Vec<Vec<Condition>>),
}

#[derive(Debug, PartialEq)]
struct Condition {
    pointer: String,
    operator: String,
    value: Value,
}

impl Pattern {
    fn parse(text: &str) -> Result<Self> {
        let text = text.trim();
        let Some(conditions) = text.strip_prefix('{').and_then(|text| text.strip_suffix('}'))
        else {
            return Ok(Self::Phrase(text.trim_matches('"').to_owned()));
        };
        let condition = |text: &str| {
            let mut words = text.trim().splitn(3, ' ');
            let (path, operator, value) = (words.next(), words.next(), words.next());
            let path = path.and_then(|path| path.strip_prefix("$."));
            let value = value.and_then(|value| serde_json::from_str(value.trim()).ok());
            match (path, operator, value) {
                (
                    Some(path),
                    Some(operator @ ("=" | "!=" | ">=" | "<=" | ">" | "<")),
                    Some(value),
                ) => {
                    let pointer = format!("/{}", path.replace('.', "/"));
                    Ok(Condition { pointer, operator: operator.to_owned(), value })
                }
                _ => bail!("the local stack does not support the pattern {text}"),
            }
        };
        let all = |text: &str| text.split("&&").map(condition).collect();
        Ok(Self::Json(conditions.split("||").map(all).collect::<Result<_>>()?))
    }

    fn matches(&self, line: &str) -> bool {
        match self {
            Self::Phrase(phrase) => line.contains(phrase),
            Self::Json(any) => {
                let Ok(line) = serde_json::from_str::<Value>(line) else { return false };
                any.iter().any(|all| all.iter().all(|condition| condition.holds(&line)))
            }
        }
    }
}

impl Condition {
    fn holds(&self, line: &Value) -> bool {
        let Some(found) = line.pointer(&self.pointer) else { return false };
        let order = found
            .as_f64()
            .zip(self.value.as_f64())
            .and_then(|(one, other)| one.partial_cmp(&other));
        match self.operator.as_str() {
            "=" => *found == self.value,
            "!=" => *found != self.value,
            ">=" => order.is_some_and(std::cmp::Ordering::is_ge),
            "<=" => order.is_some_and(std::cmp::Ordering::is_le),
            ">" => order.is_some_and(std::cmp::Ordering::is_gt),
            _ => order.is_some_and(std::cmp::Ordering::is_lt),
        }
    }
}

/// Answers `StartMessageMoveTask`: redrives the messages of a dead-letter queue to its source
/// queue, or to the `DestinationArn`, before the answer. A message to a FIFO queue gets a new
/// deduplication id. Otherwise, the queue might drop the message as a duplicate.
pub(crate) async fn move_messages(sqs: &Sqs, queues: &[Queue], body: &[u8]) -> Result<Value> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Move {
        source_arn: String,
        #[serde(default)]
        destination_arn: Option<String>,
    }
    let Move { source_arn, destination_arn } = serde_json::from_slice(body)?;
    let is_of = |queue: &&Queue| {
        queue
            .attributes
            .get("RedrivePolicy")
            .is_some_and(|policy| policy.contains(&format!("\"{source_arn}\"")))
    };
    let of: Vec<_> = queues.iter().filter(is_of).map(|queue| queue.arn.clone()).collect();
    let destination = match (destination_arn, of.as_slice()) {
        (Some(destination), _) => destination,
        (None, [destination]) => destination.clone(),
        (None, of) => {
            bail!("the queue has the dead letters of {} queues: give the DestinationArn", of.len())
        }
    };
    let source = sqs.queue_url(&source_arn)?;
    let destination = sqs.queue_url(&destination)?;
    let is_fifo = destination.ends_with(".fifo");
    loop {
        let received = sqs
            .client
            .receive_message()
            .queue_url(&source)
            .max_number_of_messages(10)
            .message_system_attribute_names(MessageSystemAttributeName::MessageGroupId)
            .send()
            .await?;
        let messages = received.messages.unwrap_or_default();
        if messages.is_empty() {
            return Ok(json!({ "TaskHandle": Uuid::now_v7() }));
        }
        for message in messages {
            let attributes = message.attributes.unwrap_or_default();
            let group = attributes.get(&MessageSystemAttributeName::MessageGroupId).cloned();
            let receipt =
                message.receipt_handle.ok_or_else(|| anyhow!("a message has no receipt"))?;
            let send =
                sqs.client.send_message().queue_url(&destination).set_message_body(message.body);
            let send = send.set_message_group_id(group.filter(|_| is_fifo));
            let id = is_fifo.then(|| Uuid::now_v7().to_string());
            send.set_message_deduplication_id(id).send().await?;
            sqs.client.delete_message().queue_url(&source).receipt_handle(receipt).send().await?;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn patterns_of_the_runbook_find_their_lines() {
        let error =
            r#"{"level":"ERROR","message":"projection","record":{"status":"timeout"},"code":503}"#;
        for (pattern, found) in [
            ("\"projection\"", true),
            ("\"tank-1\"", false),
            ("", true),
            ("{ $.level = \"ERROR\" && $.message = \"projection\" }", true),
            ("{ $.level = \"ERROR\" && $.message = \"command\" }", false),
            ("{ $.level = \"WARN\" || $.record.status = \"timeout\" }", true),
            ("{ $.code >= 500 }", true),
            ("{ $.code < 500 }", false),
            ("{ $.nothing = 1 }", false),
        ] {
            assert_eq!(Pattern::parse(pattern).unwrap().matches(error), found, "{pattern}");
        }
        assert!(Pattern::parse("{ level is bad }").is_err());
        assert!(!Pattern::parse("{ $.level = \"ERROR\" }").unwrap().matches("no JSON"));
    }

    /// A message that is redriven twice within the time of deduplication arrives twice, in its
    /// group.
    #[tokio::test]
    async fn dead_letters_are_redriven_to_their_source_queue() {
        let sqs = Sqs::start().await.unwrap();
        let arn = |name: &str| format!("arn:aws:sqs:us-east-1:000000000000:{name}");
        let fifo = ("FifoQueue".to_owned(), "true".to_owned());
        let policy =
            json!({ "deadLetterTargetArn": arn("dead.fifo"), "maxReceiveCount": 3 }).to_string();
        let of = HashMap::from([fifo.clone(), ("RedrivePolicy".to_owned(), policy)]);
        let queues = [
            Queue {
                name: "dead.fifo".into(),
                arn: arn("dead.fifo"),
                attributes: HashMap::from([fifo]),
            },
            Queue { name: "fills.fifo".into(), arn: arn("fills.fifo"), attributes: of },
        ];
        sqs.create_queues(&queues).await.unwrap();
        let (dead, fills) =
            (sqs.queue_url(&arn("dead.fifo")).unwrap(), sqs.queue_url(&arn("fills.fifo")).unwrap());
        let task = json!({ "SourceArn": arn("dead.fifo") }).to_string();
        for round in ["one", "two"] {
            let send = sqs
                .client
                .send_message()
                .queue_url(&dead)
                .message_body("v1")
                .message_group_id("tank-1");
            send.message_deduplication_id(round).send().await.unwrap();
            assert!(
                move_messages(&sqs, &queues, task.as_bytes()).await.unwrap()["TaskHandle"]
                    .is_string()
            );
            let receive = sqs.client.receive_message().queue_url(&fills);
            let receive =
                receive.message_system_attribute_names(MessageSystemAttributeName::MessageGroupId);
            let [message] = receive.send().await.unwrap().messages.unwrap().try_into().unwrap();
            assert_eq!(message.body.as_deref(), Some("v1"), "{round}");
            let group = &message.attributes.unwrap()[&MessageSystemAttributeName::MessageGroupId];
            assert_eq!(group, "tank-1");
            let receipt = message.receipt_handle.unwrap();
            sqs.client
                .delete_message()
                .queue_url(&fills)
                .receipt_handle(receipt)
                .send()
                .await
                .unwrap();
        }
        let nobodys = json!({ "SourceArn": arn("fills.fifo") }).to_string();
        assert!(
            move_messages(&sqs, &queues, nobodys.as_bytes()).await.is_err(),
            "it is no dead-letter queue"
        );
    }

    #[test]
    fn the_log_stores_lines_up_to_a_maximum() {
        let logs = Logs::default();
        for line in 0..KEPT + 10 {
            logs.add("fanout", &line.to_string());
        }
        let found = logs.filter(br#"{"filterPattern": "10009", "startTime": 0}"#).unwrap();
        assert_eq!(found["events"][0]["message"], "10009");
        assert_eq!(logs.filter(b"{}").unwrap()["events"].as_array().unwrap().len(), KEPT);
        assert_eq!(logs.filter(br#"{"startTime": 9999999999999}"#).unwrap()["events"], json!([]));
    }
}
