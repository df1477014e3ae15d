//! Brings ratings into the feeds of those who follow their authors, from the log.

use ledgerline_dynamodb::{KeyNames, ReadTable};
use ledgerline_lambda::config;
use links::views::feeds::TABLE;
use links_functions::projectors::feeds::{FeedProjector, needs};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    ledgerline_lambda::fifo::run(needs(), async |sdk| {
        let table = ReadTable::new(aws_sdk_dynamodb::Client::new(&sdk), config::text(TABLE.variable)?);
        // This opens the connection, so that the first message does not wait for it.
        let _ = table.generations(KeyNames::from(&TABLE)).await;
        Ok(FeedProjector { table })
    })
    .await
}
