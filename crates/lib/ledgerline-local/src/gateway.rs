//! One address for all emulated services, as `AWS_ENDPOINT_URL` needs it. The AWS CLI, `sam local`
//! and other programs on this machine use the address.
//!
//! Functions send their requests to queues, the bus, Lambda and SES to this address as well, and
//! the gateway checks their permissions. The server of the database checks permissions itself.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    Json, Router,
    body::{Body, Bytes},
    extract::{DefaultBodyLimit, Path, RawQuery, State},
    http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode},
    routing::{get, post},
};
use serde_json::json;

use ledgerline::url_text::decode_query;
use ledgerline_sam::template::{ACCOUNT, Queue, REGION, Resource};

use crate::{
    access_log::AccessLog,
    aws_answer::answer,
    buckets::Buckets,
    event_bus::EventBridge,
    host::{Function, LIVE},
    iam::Iam,
    limits::{self, DividedBatch},
    mailbox::{Mailbox, SendEmail},
    operations::{self, Logs},
    outages::Outage,
    services::Sqs,
    sources::invocation::Invocations,
    trace_log::TraceLog,
};

/// The content type of the Query protocol.
const FORM: &[u8] = b"application/x-www-form-urlencoded";

/// The services behind the address.
#[derive(Debug)]
pub(crate) struct Gateway {
    pub(crate) dynamodb: String,
    pub(crate) sqs: Arc<Sqs>,
    pub(crate) buckets: Buckets,
    pub(crate) events: EventBridge,
    /// The functions, each with its logical and physical ids.
    pub(crate) functions: Vec<(Vec<String>, Arc<Function>)>,
    pub(crate) invocations: Arc<Invocations>,
    /// The name of the stack.
    pub(crate) stack: String,
    pub(crate) resources: Vec<Resource>,
    /// The text of the template.
    pub(crate) template: String,
    pub(crate) queues: Vec<Queue>,
    /// The log lines of the functions.
    pub(crate) logs: Arc<Logs>,
    /// The log of requests to the HTTP API, if the template has one.
    pub(crate) access: Option<Arc<AccessLog>>,
    pub(crate) client: reqwest::Client,
    pub(crate) mailbox: Mailbox,
    pub(crate) hops: TraceLog,
    pub(crate) iam: Arc<Iam>,
}

impl Gateway {
    pub(crate) fn router(self) -> Router {
        let buckets = self.buckets.router();
        let services = Router::new()
            .route("/2015-03-31/functions/{name}/invocations", post(invoke))
            .route("/2015-03-31/functions", get(functions))
            .route("/2015-03-31/functions/", get(functions))
            .route("/v2/email/outbound-emails", post(send_mail))
            .route("/mailbox", get(mails))
            .route("/outages", post(begin_outage))
            .fallback(handle_operation)
            // The largest request is DynamoDB's BatchWriteItem.
            .layer(DefaultBodyLimit::max(16 * 1024 * 1024))
            .with_state(Arc::new(self));
        services.merge(buckets)
    }
}

async fn handle_operation(
    State(gateway): State<Arc<Gateway>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response<Body> {
    let target =
        headers.get("x-amz-target").and_then(|target| target.to_str().ok()).unwrap_or_default();
    // CloudFormation uses the Query protocol, whose requests are forms.
    if headers.get("content-type").is_some_and(|kind| kind.as_bytes().starts_with(FORM)) {
        let fields = operations::fields(&body);
        let target = format!("CloudFormation.{}", fields["Action"].as_str().unwrap_or_default());
        let request = fields.to_string();
        if let Some((_, refusal)) = gateway.iam.refusal(&headers, &target, request.as_bytes()) {
            return operations::deny(&refusal);
        }
        return operations::cloudformation(
            &gateway.stack,
            &gateway.resources,
            &gateway.template,
            &fields,
        );
    }
    let is_of_database = target.starts_with("DynamoDB");
    // The server of the database checks permissions itself.
    if !is_of_database && let Some((status, refusal)) = gateway.iam.refusal(&headers, target, &body)
    {
        return answer(status, refusal);
    }
    if target == "Logs_20140328.FilterLogEvents" {
        let group = operations::log_group(&body);
        let access = gateway.access.as_ref().filter(|access| access.group == group);
        let logs = access.map_or(&*gateway.logs, |access| &access.logs);
        return operation_answer(logs.filter(&body));
    }
    // The JSON protocols of AWS name the operation in a header.
    let service = target.split_once('.').map_or(target, |(service, _)| service);
    match service {
        "AmazonSQS" | "AWSEvents" => {}
        "DynamoDB_20120810" | "DynamoDBStreams_20120810" => {
            return to_database(&gateway, &headers, body).await;
        }
        _ => {
            let message = "here are DynamoDB, DynamoDB Streams, SQS and EventBridge, in their JSON protocols, the objects of S3, the invocation and the list of functions, SendEmail of SES, \
                the names of CloudFormation's resources, and FilterLogEvents of CloudWatch Logs";
            return answer(
                StatusCode::BAD_REQUEST,
                json!({ "__type": "UnknownOperationException", "message": message }),
            );
        }
    }
    if let Some((status, refusal)) = limits::refusal(target, &body) {
        return answer(status, refusal);
    }
    if target == "AmazonSQS.StartMessageMoveTask" {
        return operation_answer(
            operations::move_messages(&gateway.sqs, &gateway.queues, &body).await,
        );
    }
    if service == "AWSEvents" {
        return gateway.events.answer(&headers, &body).await;
    }
    if target == "AmazonSQS.SendMessageBatch"
        && let Some(batch) = DividedBatch::from_request(&body)
    {
        return batch.send(&gateway.sqs, &headers).await;
    }
    gateway.sqs.answer(&headers, body).await
}

async fn to_database(gateway: &Gateway, headers: &HeaderMap, body: Bytes) -> Response<Body> {
    let mut request = gateway.client.post(&gateway.dynamodb).body(body);
    for (name, value) in
        headers.iter().filter(|(name, _)| *name != "host" && *name != "content-length")
    {
        request = request.header(name, value);
    }
    match request.send().await {
        Ok(response) => {
            let status = response.status();
            let kept = |name: &HeaderName| name != "transfer-encoding" && name != "content-length";
            let headers: Vec<_> = response
                .headers()
                .iter()
                .filter(|(name, _)| kept(name))
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect();
            let mut passed = Response::new(Body::from(response.bytes().await.unwrap_or_default()));
            *passed.status_mut() = status;
            passed.headers_mut().extend(headers);
            passed
        }
        Err(error) => answer(StatusCode::BAD_GATEWAY, json!({ "message": error.to_string() })),
    }
}

fn operation_answer(done: anyhow::Result<serde_json::Value>) -> Response<Body> {
    match done {
        Ok(done) => answer(StatusCode::OK, done),
        Err(error) => answer(
            StatusCode::BAD_REQUEST,
            json!({ "__type": "InvalidParameterException", "message": format!("{error:#}") }),
        ),
    }
}

/// Returns the sent mails; with `?to=`, those to one address.
async fn mails(
    State(gateway): State<Arc<Gateway>>,
    RawQuery(query): RawQuery,
) -> Result<Json<serde_json::Value>, StatusCode> {
    let query = decode_query(&query.unwrap_or_default()).map_err(|_| StatusCode::BAD_REQUEST)?;
    let recipient = query.into_iter().find(|(name, _)| name == "to");
    Ok(gateway.mailbox.mails(recipient.as_ref().map(|(_, recipient)| recipient.as_str())))
}

/// Makes a resource fail for a while: `{"of": "BalancesTable", "seconds": 60}`. A request with
/// `"answer": "throttled"` makes the resource throttle its callers.
async fn begin_outage(
    State(gateway): State<Arc<Gateway>>,
    Json(outage): Json<Outage>,
) -> StatusCode {
    gateway.hops.always("outage", &format!("{} for {} s", outage.of, outage.seconds));
    gateway.iam.outages.begin(outage);
    StatusCode::NO_CONTENT
}

/// Answers `SendEmail` of SES.
async fn send_mail(
    State(gateway): State<Arc<Gateway>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response<Body> {
    if let Some((status, refusal)) = gateway.iam.refusal(&headers, "SES.SendEmail", &body) {
        return refuse(status, refusal);
    }
    let mail: SendEmail = match serde_json::from_slice(&body) {
        Ok(mail) => mail,
        Err(error) => {
            return answer(StatusCode::BAD_REQUEST, json!({ "message": error.to_string() }));
        }
    };
    gateway.hops.line("mail", "sent: read it at /mailbox");
    gateway.mailbox.send(mail)
}

/// Answers `ListFunctions` of Lambda: the physical name, the ARN and the environment of each
/// function. The environment leaves out the variables that only the local stack sets.
async fn functions(State(gateway): State<Arc<Gateway>>, headers: HeaderMap) -> Response<Body> {
    if let Some((status, refusal)) = gateway.iam.refusal(&headers, "Lambda.ListFunctions", b"{}") {
        return refuse(status, refusal);
    }
    let functions: Vec<_> = gateway.functions.iter().map(|(ids, function)| {
        let environment: BTreeMap<_, _> =
            function.environment().iter().filter(|(name, _)| !name.starts_with("AWS_")).collect();
        json!({ "FunctionName": ids.last(), "FunctionArn": function.arn(), "Environment": { "Variables": environment } })
    }).collect();
    answer(StatusCode::OK, json!({ "Functions": functions }))
}

/// Answers `Invoke` of Lambda. A request names a function by its ARN, whole or without the region,
/// by its logical id, as in `sam local start-lambda`, by its physical name, or by its binary.
/// CloudFormation returns the physical name.
async fn invoke(
    State(gateway): State<Arc<Gateway>>,
    Path(name): Path<String>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    payload: Bytes,
) -> Response<Body> {
    let partial = name.strip_prefix(&format!("arn:aws:lambda:{REGION}:")).unwrap_or(&name);
    let short = partial.strip_prefix(&format!("{ACCOUNT}:function:")).unwrap_or(partial);
    // The name may end with an alias of the function, such as `:live`.
    let (plain, alias) = short.split_once(':').unwrap_or((short, ""));
    let query = decode_query(&query.unwrap_or_default()).unwrap_or_default();
    let qualifier = query.into_iter().find(|(key, _)| key == "Qualifier");
    let alias = qualifier.map_or_else(|| alias.to_owned(), |(_, qualifier)| qualifier);
    let named = |(ids, function): &&(Vec<String>, Arc<Function>)| {
        function.name() == plain || ids.iter().any(|id| id == plain)
    };
    let found = gateway.functions.iter().find(named);
    let found = found.filter(|_| ["", "$LATEST", LIVE].contains(&alias.as_str()));
    let Some((_, function)) = found else {
        let message = format!("there is no function `{name}` with the qualifier `{alias}`");
        return invoke_error(StatusCode::NOT_FOUND, "ResourceNotFoundException", &message);
    };
    let qualified = if alias.is_empty() { String::new() } else { format!(":{alias}") };
    let arn = format!("{}{qualified}", function.arn());
    let asked = json!({ "FunctionName": arn }).to_string();
    if let Some((status, refusal)) =
        gateway.iam.refusal(&headers, "Lambda.Invoke", asked.as_bytes())
    {
        return refuse(status, refusal);
    }
    let kind = headers.get("x-amz-invocation-type").map(HeaderValue::as_bytes);
    let limit =
        if kind == Some(b"Event") { limits::MAX_BYTES } else { limits::MAX_SYNCHRONOUS_BYTES };
    if payload.len() > limit {
        let message =
            format!("Request must be smaller than {limit} bytes for the InvokeFunction operation");
        let kind = "RequestTooLargeException";
        return invoke_error(StatusCode::PAYLOAD_TOO_LARGE, kind, &message);
    }
    match kind {
        Some(b"Event") => {
            gateway.invocations.begin(function.arn(), &String::from_utf8_lossy(&payload));
            return answer(StatusCode::ACCEPTED, serde_json::Value::Null);
        }
        Some(b"DryRun") => return answer(StatusCode::NO_CONTENT, serde_json::Value::Null),
        Some(b"RequestResponse") | None => {}
        Some(_) => {
            let message = "X-Amz-Invocation-Type is Event, RequestResponse or DryRun";
            let kind = "InvalidParameterValueException";
            return invoke_error(StatusCode::BAD_REQUEST, kind, message);
        }
    }
    match function.invoke_as(arn, None, payload.to_vec()).await {
        Ok(body) => Response::new(Body::from(body)),
        Err(error) => {
            let mut answer = answer(
                StatusCode::OK,
                json!({ "errorType": error.kind, "errorMessage": error.message }),
            );
            answer
                .headers_mut()
                .insert("x-amz-function-error", HeaderValue::from_static("Unhandled"));
            answer
        }
    }
}

/// Returns an error of Lambda's `Invoke`.
fn invoke_error(status: StatusCode, kind: &'static str, message: &str) -> Response<Body> {
    let mut answer = answer(status, json!({ "Type": "User", "Message": message }));
    answer.headers_mut().insert("x-amzn-errortype", HeaderValue::from_static(kind));
    answer
}

/// Returns a refusal or an outage in the form of Lambda and SES, which have a URL for each
/// operation.
fn refuse(status: StatusCode, refusal: serde_json::Value) -> Response<Body> {
    if status.is_server_error() {
        return answer(status, refusal);
    }
    let (status, kind) = match status {
        StatusCode::TOO_MANY_REQUESTS => (status, "TooManyRequestsException"),
        _ => (StatusCode::FORBIDDEN, "AccessDeniedException"),
    };
    let mut refused = answer(status, refusal);
    refused.headers_mut().insert("x-amzn-errortype", HeaderValue::from_static(kind));
    refused
}
