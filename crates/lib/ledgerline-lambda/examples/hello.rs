//! A function that does nothing: what `cargo xtask sizes` compares ours with.

use lambda_runtime::{Error, LambdaEvent, service_fn};
use serde_json::{Value, json};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    lambda_runtime::run(service_fn(async |_: LambdaEvent<Value>| {
        Ok::<_, Error>(json!({ "hello": "world" }))
    }))
    .await
}
