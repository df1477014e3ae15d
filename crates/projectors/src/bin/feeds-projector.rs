//! Brings ratings into the feeds of those who follow their authors, from the log.

use lambda_kit::config;
use projectors::feeds::FeedProjector;
use read_models::feeds::TABLE;
use read_models_dynamodb::ReadTable;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_kit::Error> {
    lambda_kit::fifo::run(async |sdk| {
        let table = ReadTable::new(aws_sdk_dynamodb::Client::new(&sdk), config::text("FEEDS_TABLE")?);
        table.connect(TABLE.partition).await;
        Ok(FeedProjector { table })
    })
    .await
}
