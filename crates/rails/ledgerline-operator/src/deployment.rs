//! What is deployed: functions with their environments, which name the tables and queues.

use std::{collections::BTreeMap, sync::LazyLock, time::Duration};

use anyhow::{Context, Result, bail};
use aws_config::BehaviorVersion;
use aws_smithy_http_client::tls::{self, rustls_provider::CryptoMode};
use aws_smithy_types::timeout::TimeoutConfig;
use aws_types::SdkConfig;
use ledgerline_dynamodb::{DynamoDbStore, ReadTable};
use ledgerline_local::{permissions::resources, services, template::Source};
use serde_json::Value;

use crate::Stack;

/// The functions of a stack, and clients for what they use.
pub(crate) struct Deployment {
    stack: String,
    pub(crate) dynamodb: aws_sdk_dynamodb::Client,
    pub(crate) lambda: aws_sdk_lambda::Client,
    pub(crate) sqs: aws_sdk_sqs::Client,
    sts: aws_sdk_sts::Client,
    pub(crate) is_local: bool,
    /// By its logical id: the name of each function, and its environment.
    functions: BTreeMap<String, (String, BTreeMap<String, String>)>,
}

impl Deployment {
    /// Finds the functions of a stack.
    pub(crate) async fn find(stack: &Stack) -> Result<Self> {
        let sdk = match &stack.local {
            Some(url) => services::sdk_config(url),
            None => of_aws().await,
        };
        let template = Source::read(&stack.template)?.json();
        let ids: Vec<_> = resources(&template, &["AWS::Serverless::Function"]).map(|(id, _)| id).collect();
        // An invocation that is waited for may take as long as a function may, which is longer than a client waits by itself.
        let lambda = aws_sdk_lambda::config::Builder::from(&sdk).timeout_config(LONG.clone()).build();
        let lambda = aws_sdk_lambda::Client::from_conf(lambda);
        let mut functions = BTreeMap::new();
        let mut pages = lambda.list_functions().into_paginator().send();
        while let Some(page) = pages.next().await {
            let page = page.with_context(|| match &stack.local {
                Some(url) => {
                    format!("the functions cannot be listed: does the local stack run, with its AWS address at {url}?")
                }
                None => "the functions cannot be listed".to_owned(),
            })?;
            for function in page.functions.unwrap_or_default() {
                let name = function.function_name.unwrap_or_default();
                let id = logical_id(&name, &stack.stack).filter(|id| ids.contains(id)).map(ToOwned::to_owned);
                if let Some(id) = id {
                    let variables = function.environment.and_then(|environment| environment.variables);
                    let variables = variables.unwrap_or_default().into_iter().collect();
                    functions.insert(id, (name, variables));
                }
            }
        }
        if functions.is_empty() {
            bail!("there is no function of a stack named {}: say --stack", stack.stack);
        }
        Ok(Self {
            stack: stack.stack.clone(),
            dynamodb: aws_sdk_dynamodb::Client::new(&sdk),
            lambda,
            sqs: aws_sdk_sqs::Client::new(&sdk),
            sts: aws_sdk_sts::Client::new(&sdk),
            is_local: stack.local.is_some(),
            functions,
        })
    }

    /// The name and the environment of the function with this logical id.
    pub(crate) fn function(&self, id: &str) -> Option<(&str, &BTreeMap<String, String>)> {
        self.functions.get(id).map(|(name, variables)| (name.as_str(), variables))
    }

    /// The value of a variable that names the same thing in every function that has it.
    pub(crate) fn shared(&self, variable: &str) -> Result<&str> {
        let mut named = self.functions.values().filter_map(|(_, variables)| variables.get(variable));
        let value = named.find(|value| !value.is_empty());
        value
            .map(String::as_str)
            .with_context(|| format!("no function of the stack {} has the variable {variable}", self.stack))
    }

    pub(crate) fn log(&self) -> Result<DynamoDbStore> {
        Ok(DynamoDbStore::new(self.dynamodb.clone(), self.shared("COMMITS_TABLE")?))
    }

    /// The number of parts in which the log is read at once. The emulated database has no index for parts, and sorts the whole table for each page of one.
    pub(crate) fn parts(&self) -> i32 {
        if self.is_local { 1 } else { 8 }
    }

    /// The table of `$all`, and the number of its partitions; `None` if the stack has none.
    pub(crate) fn order(&self) -> Option<(DynamoDbStore, u16)> {
        let table = self.shared("SEQUENCE_TABLE").ok()?;
        let partitions = self.shared("SEQUENCE_PARTITIONS").ok().and_then(|number| number.parse().ok());
        Some((DynamoDbStore::new(self.dynamodb.clone(), table), partitions.unwrap_or(1)))
    }

    /// Who runs the tool: the caller of AWS, or the user of this computer.
    pub(crate) async fn operator(&self) -> Result<String> {
        if self.is_local {
            return Ok(std::env::var("USER").unwrap_or_else(|_| "somebody".to_owned()));
        }
        let caller = self.sts.get_caller_identity().send().await.context("who is this? AWS does not say")?;
        caller.arn.context("AWS does not say who this is")
    }

    /// The number of the log's items and its bytes, as they were some hours ago.
    pub(crate) async fn size_of_log(&self) -> Result<(u64, u64)> {
        let table = self.dynamodb.describe_table().table_name(self.shared("COMMITS_TABLE")?).send().await?;
        let number = |number: Option<i64>| number.and_then(|number| number.try_into().ok()).unwrap_or(0);
        let table = table.table.unwrap_or_else(|| unreachable!("a table is described"));
        Ok((number(table.item_count), number(table.table_size_bytes)))
    }

    /// The longest timeout of the functions that have this table, in seconds.
    pub(crate) fn longest(&self, table: &str, template: &Value) -> u64 {
        let has_it = self
            .functions
            .iter()
            .filter(|(_, (_, variables))| variables.values().any(|value| value == table));
        let timeout = |id: &String| {
            let nodes = [&template["Resources"][id]["Properties"], &template["Globals"]["Function"]];
            nodes.iter().find_map(|node| node["Timeout"].as_u64()).unwrap_or(3)
        };
        has_it.map(|(id, _)| timeout(id)).max().unwrap_or(900)
    }

    pub(crate) fn table(&self, name: &str) -> ReadTable {
        ReadTable::new(self.dynamodb.clone(), name)
    }

    /// The URLs of all queues of the stack, by what their names begin with: their logical ids.
    pub(crate) async fn queues(&self) -> Result<BTreeMap<String, String>> {
        let list = self.sqs.list_queues().queue_name_prefix(format!("{}-", self.stack)).max_results(1_000);
        let mut pages = list.into_paginator().send();
        let mut queues = BTreeMap::new();
        while let Some(page) = pages.next().await {
            for url in page.context("the queues cannot be listed")?.queue_urls.unwrap_or_default() {
                let name = url.rsplit('/').next().unwrap_or_default();
                if let Some(id) = logical_id(name, &self.stack) {
                    queues.insert(id.to_owned(), url.clone());
                }
            }
        }
        Ok(queues)
    }

    /// The name of the table with this logical id.
    pub(crate) async fn table_named(&self, id: &str) -> Result<Option<String>> {
        let mut names = self.dynamodb.list_tables().into_paginator().items().send();
        while let Some(name) = names.next().await {
            let name = name.context("the tables cannot be listed")?;
            if logical_id(&name, &self.stack) == Some(id) {
                return Ok(Some(name));
            }
        }
        Ok(None)
    }
}

/// Timeouts of a client that waits for functions. Lambda ends a function after fifteen minutes.
static LONG: LazyLock<TimeoutConfig> = LazyLock::new(|| {
    let longest = Duration::from_secs(900);
    TimeoutConfig::builder().connect_timeout(Duration::from_secs(5)).read_timeout(longest).build()
});

/// The logical id in a name that CloudFormation gives: that of the stack, the logical id, and, on AWS, twelve signs. So `ledgerline-prod-FanoutFunction-…` has none of the stack
/// `ledgerline`.
fn logical_id<'n>(name: &'n str, stack: &str) -> Option<&'n str> {
    let rest = name.strip_prefix(stack)?.strip_prefix('-')?;
    let rest = rest.strip_suffix(".fifo").unwrap_or(rest);
    match rest.split_once('-') {
        None => Some(rest),
        Some((id, signs)) => (!signs.contains('-')).then_some(id),
    }
}

/// The configuration of the AWS CLI: profiles, environment, instances.
async fn of_aws() -> SdkConfig {
    let provider = tls::Provider::Rustls(CryptoMode::Ring);
    let http = aws_smithy_http_client::Builder::new().tls_provider(provider).build_https();
    aws_config::defaults(BehaviorVersion::latest()).http_client(http).load().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_is_told_from_one_whose_name_begins_like_its_own() {
        for (name, id) in [
            ("ledgerline-FanoutFunction-1kzRhNTyFSBx", Some("FanoutFunction")),
            ("ledgerline-FanoutFunction", Some("FanoutFunction")),
            ("ledgerline-TransactionsQueue-1kzRhNTyFSBx.fifo", Some("TransactionsQueue")),
            ("ledgerline-TransactionsQueue.fifo", Some("TransactionsQueue")),
            ("ledgerline-prod-FanoutFunction-1kzRhNTyFSBx", None),
            ("other-FanoutFunction-1kzRhNTyFSBx", None),
        ] {
            assert_eq!(logical_id(name, "ledgerline"), id, "{name}");
        }
    }
}
