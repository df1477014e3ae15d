//! Every sample event is answered as the table beside it says, by the functions themselves.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    reason = "in a test a panic is the report"
)]

mod running;

use std::path::Path;

use local::samples::{has, samples};
use running::Local;
use serde_json::Value;

#[tokio::test]
async fn every_sample_event_is_answered_as_documented() {
    let local = Local::start(None).await;
    let http = reqwest::Client::new();
    for sample in samples(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))).unwrap() {
        let url = format!("{}/2015-03-31/functions/{}/invocations", local.aws_url(), sample.function);
        let answer = http.post(url).json(&sample.event).send().await.unwrap();
        assert!(answer.headers().get("x-amz-function-error").is_none(), "{}", sample.path);
        let answer: Value = answer.json().await.unwrap();
        assert!(has(&answer, &sample.answer), "{}: {answer}, not {}", sample.path, sample.answer);
    }
}
