//! The deployed stack: its resources, and its functions with their environments. The environments
//! name the tables and the queues.

use std::{
    collections::BTreeMap,
    process::Command,
    sync::{Arc, LazyLock},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use aws_config::BehaviorVersion;
use aws_sdk_cloudformation::types::TemplateStage;
use aws_sdk_dynamodb::config::{Credentials, SharedCredentialsProvider};
use aws_sdk_lambda::{
    error::{ProvideErrorMetadata, SdkError},
    operation::invoke::InvokeError,
    primitives::Blob,
    types::EnvironmentResponse,
};
use aws_smithy_http_client::tls::{self, rustls_provider::CryptoMode};
use aws_smithy_types::timeout::TimeoutConfig;
use aws_types::SdkConfig;
use futures::{FutureExt, StreamExt, stream};
use ledgerline::manifest::BODIES_BUCKET;
use ledgerline_dynamodb::{DynamoDbStore, KeyNames, ReadPositions, Units, ViewTable};
use ledgerline_lambda::rebuild::{RebuildRequest, RebuildResponse};
use serde_json::{Value, json};

use crate::Stack;

/// The logical id of the sequencer.
pub(crate) const SEQUENCER: &str = "SequencerFunction";
/// The alias of a function's live version.
pub(crate) const LIVE: &str = "live";
/// Lambda's default timeout of a function, in seconds.
const DEFAULT_TIMEOUT: u64 = 3;
/// Lambda's longest timeout, in seconds. The tool assumes it if the real one is unknown.
pub(crate) const MAX_TIMEOUT: u64 = 900;
/// The number of functions that are read at once.
const AT_ONCE: usize = 8;

/// The resources of a stack, and clients for their services.
pub(crate) struct Deployment {
    pub(crate) stack: String,
    pub(crate) cloudformation: aws_sdk_cloudformation::Client,
    pub(crate) events: aws_sdk_eventbridge::Client,
    pub(crate) dynamodb: aws_sdk_dynamodb::Client,
    pub(crate) lambda: aws_sdk_lambda::Client,
    pub(crate) sqs: aws_sdk_sqs::Client,
    sts: aws_sdk_sts::Client,
    pub(crate) sdk: SdkConfig,
    pub(crate) is_local: bool,
    /// The units of the database that the tool has consumed.
    pub(crate) units: Units,
    /// The type and the physical id of each resource, by its logical id. The physical id is a name,
    /// or the URL of a queue.
    resources: BTreeMap<String, (String, String)>,
    /// The functions, by their logical ids.
    functions: BTreeMap<String, Function>,
}

/// A function of the stack.
#[derive(Debug, Clone)]
pub(crate) struct Function {
    pub(crate) name: String,
    /// The variables of the version that the alias `live` names. A deployment may have written
    /// others that are not live.
    pub(crate) variables: BTreeMap<String, String>,
    /// Whether the live version has the variables of the last deployment, or the reason why this is
    /// unknown.
    pub(crate) is_newest: Result<bool, String>,
}

impl Deployment {
    /// Finds the resources of a stack.
    pub(crate) async fn find(stack: &Stack) -> Result<Self> {
        let sdk = match &stack.local {
            Some(url) => local_config(url),
            None => aws_config().await,
        };
        // The client waits for an invocation as long as a function may run. Its own timeout is
        // shorter.
        let lambda =
            aws_sdk_lambda::config::Builder::from(&sdk).timeout_config(LONG.clone()).build();
        let units = Units::default();
        let dynamodb =
            aws_sdk_dynamodb::config::Builder::from(&sdk).interceptor(units.clone()).build();
        let mut deployment = Self {
            stack: stack.name()?,
            cloudformation: aws_sdk_cloudformation::Client::new(&sdk),
            events: aws_sdk_eventbridge::Client::new(&sdk),
            dynamodb: aws_sdk_dynamodb::Client::from_conf(dynamodb),
            units,
            lambda: aws_sdk_lambda::Client::from_conf(lambda),
            sqs: aws_sdk_sqs::Client::new(&sdk),
            sts: aws_sdk_sts::Client::new(&sdk),
            sdk,
            is_local: stack.local.is_some(),
            resources: BTreeMap::new(),
            functions: BTreeMap::new(),
        };
        deployment.list_resources(stack).await?;
        deployment.list_functions().await?;
        Ok(deployment)
    }

    async fn list_resources(&mut self, stack: &Stack) -> Result<()> {
        let list = self.cloudformation.list_stack_resources().stack_name(&self.stack);
        let name = self.stack.clone();
        let mut resources = list.into_paginator().items().send();
        while let Some(resource) = resources.next().await {
            let resource = resource.with_context(|| match &stack.local {
                Some(url) => {
                    format!("the resources cannot be listed: start the local stack, with its AWS address at {url}")
                }
                None => format!(
                    "the resources of the stack `{}` cannot be listed: check its region, and its name (--stack)",
                    name
                ),
            })?;
            let id = resource.logical_resource_id.unwrap_or_default();
            let kind = resource.resource_type.unwrap_or_default();
            self.resources.insert(id, (kind, resource.physical_resource_id.unwrap_or_default()));
        }
        Ok(())
    }

    async fn list_functions(&mut self) -> Result<()> {
        let functions = self.resources_of_type("AWS::Lambda::Function");
        let ids: BTreeMap<_, _> =
            functions.map(|(id, name)| (name.to_owned(), id.to_owned())).collect();
        let mut listed = self.lambda.list_functions().into_paginator().items().send();
        let mut newest = Vec::new();
        while let Some(function) = listed.next().await {
            let function = function.context("the functions cannot be listed")?;
            let name = function.function_name.unwrap_or_default();
            if let Some(id) = ids.get(&name) {
                newest.push((id.clone(), name, variables(function.environment)));
            }
        }
        if newest.is_empty() {
            bail!("the stack `{}` has no function", self.stack);
        }
        // The local stack runs the newest version of each function.
        let live = stream::iter(newest).map(|(id, name, newest)| async {
            let function = if self.is_local {
                Function { name, variables: newest, is_newest: Ok(true) }
            } else {
                let get = self
                    .lambda
                    .get_function_configuration()
                    .function_name(format!("{name}:{LIVE}"));
                match get.send().await {
                    Ok(live) => {
                        let live = variables(live.environment);
                        Function { name, is_newest: Ok(live == newest), variables: live }
                    }
                    Err(error) => {
                        let reason = format!("{:#}", anyhow::Error::from(error));
                        Function { name, is_newest: Err(reason), variables: newest }
                    }
                }
            };
            (id, function)
        });
        let live: Vec<_> = live.buffer_unordered(AT_ONCE).collect().await;
        self.functions = live.into_iter().collect();
        Ok(())
    }

    /// Returns the logical id, the type and the physical id of each resource.
    pub(crate) fn resources(&self) -> impl Iterator<Item = (&str, &str, &str)> {
        self.resources.iter().map(|(id, (kind, name))| (id.as_str(), kind.as_str(), name.as_str()))
    }

    /// Returns the logical ids of the resources of a type, with their names, or the URLs of queues.
    pub(crate) fn resources_of_type(&self, kind: &str) -> impl Iterator<Item = (&str, &str)> {
        let resources = self.resources.iter().filter(move |(_, (found, _))| found == kind);
        resources.map(|(id, (_, physical))| (id.as_str(), physical.as_str()))
    }

    /// Returns the template as it was deployed, before SAM transformed it. It contains the
    /// addresses of packages.
    pub(crate) async fn deployed_template(&self) -> Result<String> {
        let get = self.cloudformation.get_template().stack_name(&self.stack);
        let template = get.template_stage(TemplateStage::Original).send().await;
        let template = template.context("the deployed template cannot be read")?;
        template.template_body.context("CloudFormation returns no template")
    }

    /// Returns the function with this logical id.
    pub(crate) fn function(&self, id: &str) -> Result<&Function> {
        self.functions.get(id).with_context(|| format!("`{id}` is not deployed"))
    }

    /// Returns the name by which an operator invokes a function: that of the live version. The
    /// sequencer's name has no alias. Under its alias, the sequencer trusts each record, and only
    /// the table's stream may invoke it so.
    pub(crate) fn name(&self, id: &str) -> Result<String> {
        let name = &self.function(id)?.name;
        Ok(if id == SEQUENCER { name.clone() } else { format!("{name}:{LIVE}") })
    }

    /// Makes the function of a view rebuild or fold.
    ///
    /// # Errors
    /// When the function cannot be invoked, fails, or is too old for the request.
    pub(crate) async fn invoke_view(
        &self,
        id: &str,
        request: &RebuildRequest,
    ) -> Result<RebuildResponse> {
        let response = invoke_view(&self.lambda, &self.name(id)?, request).await;
        response.with_context(|| id.to_owned())
    }

    /// Returns a reader of the positions of a view in another store. The reader invokes the view's
    /// function, because the tool cannot reach the store.
    pub(crate) fn read_positions(&self, name: &str) -> ReadPositions {
        let lambda = self.lambda.clone();
        let name = name.to_owned();
        Arc::new(move |generation, positions| {
            let lambda = lambda.clone();
            let name = name.clone();
            let request = RebuildRequest { generation, positions, ..RebuildRequest::default() };
            async move {
                let response = invoke_view(&lambda, &name, &request).await;
                let reason = |error: anyhow::Error| match is_denied(&error) {
                    true => "unknown: needs OperatorPolicy".to_owned(),
                    false => format!("{error:#}"),
                };
                response.map(|response| response.positions).map_err(reason)
            }
            .boxed()
        })
    }

    /// Returns the value of a variable that has the same value in every function with this
    /// variable.
    pub(crate) fn shared_variable(&self, variable: &str) -> Result<&str> {
        let mut named =
            self.functions.values().filter_map(|function| function.variables.get(variable));
        let value = named.find(|value| !value.is_empty());
        value.map(String::as_str).with_context(|| {
            format!("no function of the stack `{}` has the variable `{variable}`", self.stack)
        })
    }

    pub(crate) fn log(&self) -> Result<DynamoDbStore> {
        let log = DynamoDbStore::new(self.dynamodb.clone(), self.shared_variable("COMMITS_TABLE")?);
        // Without body objects, no function has the variable.
        Ok(match self.shared_variable(BODIES_BUCKET) {
            Ok(bucket) => ledgerline_s3::open(log, &self.sdk, bucket, usize::MAX),
            Err(_) => log,
        })
    }

    /// Returns the number of parts in which the log is read at once. The emulated database has no
    /// index for parts, and sorts the whole table for each page of a part.
    pub(crate) fn parts(&self) -> i32 {
        if self.is_local { 1 } else { 8 }
    }

    /// Returns the table of `$all`; `None` if the stack has no `$all`.
    pub(crate) fn order(&self) -> Option<DynamoDbStore> {
        let table = self.shared_variable("SEQUENCE_TABLE").ok()?;
        Some(DynamoDbStore::new(self.dynamodb.clone(), table))
    }

    /// Returns the operator: the caller of AWS, or the user of this computer.
    pub(crate) async fn operator(&self) -> Result<String> {
        if self.is_local {
            return Ok(local_user());
        }
        let caller = self
            .sts
            .get_caller_identity()
            .send()
            .await
            .context("AWS returns no identity of the caller")?;
        caller.arn.context("AWS returns no identity of the caller")
    }

    /// Returns the number of the log's items, and its bytes. Both numbers are some hours old.
    pub(crate) async fn log_size(&self) -> Result<(u64, u64)> {
        let table = self
            .dynamodb
            .describe_table()
            .table_name(self.shared_variable("COMMITS_TABLE")?)
            .send()
            .await?;
        let number =
            |number: Option<i64>| number.and_then(|number| number.try_into().ok()).unwrap_or(0);
        let table = table.table.unwrap_or_else(|| unreachable!("a table is described"));
        Ok((number(table.item_count), number(table.table_size_bytes)))
    }

    /// Returns the longest timeout, in seconds, of the functions that use this table.
    pub(crate) fn longest_timeout(&self, table: &str, template: &Value) -> u64 {
        let users = self
            .functions
            .iter()
            .filter(|(_, function)| function.variables.values().any(|value| value == table));
        let timeout = |id: &String| {
            let nodes =
                [&template["Resources"][id]["Properties"], &template["Globals"]["Function"]];
            nodes.iter().find_map(|node| node["Timeout"].as_u64()).unwrap_or(DEFAULT_TIMEOUT)
        };
        users.map(|(id, _)| timeout(id)).max().unwrap_or(MAX_TIMEOUT)
    }

    pub(crate) fn table(&self, name: &str, keys: impl Into<KeyNames>) -> ViewTable {
        ViewTable::new(self.dynamodb.clone(), name, keys)
    }

    /// Returns the value of an output of the stack.
    pub(crate) async fn output(&self, name: &str) -> Result<String> {
        let stacks = self.cloudformation.describe_stacks().stack_name(&self.stack).send().await;
        let stacks =
            stacks.context("the outputs of the stack cannot be read")?.stacks.unwrap_or_default();
        let mut outputs = stacks.iter().flat_map(|stack| stack.outputs());
        let output = outputs.find(|output| output.output_key() == Some(name));
        let value = output.and_then(|output| output.output_value());
        value.map(ToOwned::to_owned).with_context(|| format!("the stack has no output `{name}`"))
    }

    /// Returns the URLs of all queues of the stack, by their logical ids.
    pub(crate) fn queues(&self) -> BTreeMap<String, String> {
        self.resources_of_type("AWS::SQS::Queue")
            .map(|(id, url)| (id.to_owned(), url.to_owned()))
            .collect()
    }

    /// Returns the name of the table with this logical id.
    pub(crate) fn table_name(&self, id: &str) -> Option<&str> {
        self.resources_of_type("AWS::DynamoDB::Table")
            .find(|(table, _)| *table == id)
            .map(|(_, name)| name)
    }
}

/// Returns the name of the user of this computer. A container may set no variable with it.
fn local_user() -> String {
    let variable = std::env::var("USER").ok().filter(|user| !user.is_empty());
    let command = || Command::new("id").arg("-un").output().ok();
    let answer = || Some(String::from_utf8(command()?.stdout).ok()?.trim().to_owned());
    variable.or_else(answer).unwrap_or_default()
}

fn variables(environment: Option<EnvironmentResponse>) -> BTreeMap<String, String> {
    environment
        .and_then(|environment| environment.variables)
        .unwrap_or_default()
        .into_iter()
        .collect()
}

/// Timeouts of a client that waits for functions. Lambda stops a function after fifteen minutes.
static LONG: LazyLock<TimeoutConfig> = LazyLock::new(|| {
    let longest = Duration::from_secs(900);
    TimeoutConfig::builder().connect_timeout(Duration::from_secs(5)).read_timeout(longest).build()
});

/// Returns the configuration for a local stack, which evaluates the policies of an access key of
/// its own, and allows everything to any other.
fn local_config(url: &str) -> SdkConfig {
    let key = std::env::var("AWS_ACCESS_KEY_ID").unwrap_or_else(|_| "local".to_owned());
    let key = Credentials::new(key, "local", None, None, "local");
    let config = ledgerline_dynamodb::sdk_config(url).into_builder();
    config.credentials_provider(SharedCredentialsProvider::new(key)).build()
}

/// Returns the configuration of the AWS CLI: profiles, environment, instances.
async fn aws_config() -> SdkConfig {
    let provider = tls::Provider::Rustls(CryptoMode::Ring);
    let http = aws_smithy_http_client::Builder::new().tls_provider(provider).build_https();
    aws_config::defaults(BehaviorVersion::latest()).http_client(http).load().await
}

/// Makes a function rebuild, fold or read its view. `name` is that of the function.
async fn invoke_view(
    lambda: &aws_sdk_lambda::Client,
    name: &str,
    request: &RebuildRequest,
) -> Result<RebuildResponse> {
    let payload = json!({ "rebuild": request }).to_string();
    let call = lambda.invoke().function_name(name).payload(Blob::new(payload));
    let response = call.send().await?;
    let body = response.payload.as_ref().map_or(&[][..], |payload| payload.as_ref());
    if response.function_error.is_some() {
        bail!("{}", String::from_utf8_lossy(body));
    }
    serde_json::from_slice(body)
        .context("the deployed function cannot rebuild its view: deploy a newer version first")
}

/// Whether the operator may not invoke the function.
pub(crate) fn is_denied(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<SdkError<InvokeError>>();
    error.and_then(ProvideErrorMetadata::code) == Some("AccessDeniedException")
}
