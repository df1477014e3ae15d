//! The benchmarks: the same bank on Ledgerline and on other libraries, all on one emulated DynamoDB
//! with metered capacity. The program writes docs/benchmarks.md.

mod bank;
mod meter;
mod page;
mod peers;
mod scenarios;
mod work;

use std::path::Path;

use anyhow::{Context, Result};
use aws_sdk_dynamodb::{Client, config::Builder};
use aws_smithy_async::rt::sleep::TokioSleep;

use self::{
    meter::Meter,
    peers::{Adapter, Cqrs, Keeps, Ours, Peer},
};

/// The lengths of the measured streams, in commits.
const LENGTHS: [u64; 5] = [10, 100, 1_000, 10_000, 20_000];

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => {}
        // Valgrind runs the program with these arguments, from `work::counted`.
        ["work", who, times] => return work::run(who, times.parse()?).await,
        _ => anyhow::bail!("it takes no arguments"),
    }

    let dynamodb = ledgerline_testing::dynamodb(&["CommitsTable", "RequestsTable"]).await;
    let meter = Meter::start(&dynamodb.url).await?;
    let config = Builder::from(&dynamodb.sdk_config()).endpoint_url(&meter.url);
    let client = Client::from_conf(config.sleep_impl(TokioSleep::new()).build());
    meter::is_right(&client, &meter).await.context("the emulated DynamoDB does not bill as AWS does")?;

    let peers: [Box<dyn Peer>; 6] = [
        Box::new(Ours::new(client.clone())),
        Box::new(Cqrs::new(client.clone(), Keeps::Events).await?),
        Box::new(Cqrs::new(client.clone(), Keeps::Every(50)).await?),
        Box::new(Cqrs::new(client.clone(), Keeps::Always).await?),
        Box::new(Adapter::new(client.clone(), 1).await?),
        Box::new(Adapter::new(client, 50).await?),
    ];
    let mut measured = Vec::new();
    for peer in &peers {
        eprintln!("{}", peer.name());
        measured.push(scenarios::measure(peer.as_ref(), &meter, &LENGTHS).await?);
    }
    let instructions = work::counted()?;

    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    page::write(&docs, &measured, &instructions)
}
