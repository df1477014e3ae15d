//! The measured libraries, each used as its own documentation says.

mod adapter;
pub mod cqrs;
mod ours;

use anyhow::Result;
use async_trait::async_trait;
use aws_sdk_dynamodb::{
    Client,
    types::{AttributeDefinition, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType},
};

pub use self::{
    adapter::Adapter,
    cqrs::{Cqrs, Keeps},
    ours::Ours,
};

/// A library with the measured bank.
#[async_trait]
pub trait Peer: Send + Sync {
    /// The title of the library in the tables.
    fn name(&self) -> String;
    /// Whether a caller can send a key with a request, so that a retry has no effect.
    fn takes_keys(&self) -> bool {
        false
    }
    /// A new cold instance of a program.
    async fn instance(&self) -> Result<Box<dyn Instance>>;
    /// Writes the opening of the account if it has no commit yet, and then credits of 1, from
    /// `from` commits up to `to`. It may write in any fast way that stores the same data as
    /// commands.
    async fn fill(&self, account: &str, from: u64, to: u64) -> Result<()>;
}

/// One instance of a program, such as a Lambda function's.
#[async_trait]
pub trait Instance: Send + Sync {
    /// Credits 1 to an account. `key` is the key of the caller's request, if it has one.
    async fn credit(&self, account: &str, key: Option<&str>) -> Result<(), Failed>;
    /// The balance of the account, as its next command would read it.
    async fn balance(&self, account: &str) -> Result<i64>;
}

/// The reason why a command had no effect.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    /// Another writer won the race; the caller may retry.
    #[error("lost a race")]
    Conflict,
    /// Anything else.
    #[error("{0}")]
    Other(#[from] anyhow::Error),
}

/// Creates a table with a key of one or two attributes, each a name and a type.
async fn create_table(client: &Client, name: &str, key: &[(&str, ScalarAttributeType)]) -> Result<()> {
    let mut create = client.create_table().table_name(name).billing_mode(BillingMode::PayPerRequest);
    for ((attribute, kind), part) in key.iter().zip([KeyType::Hash, KeyType::Range]) {
        let attribute = (*attribute).to_owned();
        let definition =
            AttributeDefinition::builder().attribute_name(&attribute).attribute_type(kind.clone());
        create = create
            .key_schema(KeySchemaElement::builder().attribute_name(attribute).key_type(part).build()?)
            .attribute_definitions(definition.build()?);
    }
    create.send().await?;
    Ok(())
}
