//! The sample events of a workspace, on its local stack.

use serde_json::Value;

use super::{LocalStack, workspace};
use ledgerline_sam::sample_events::{Sample, all_samples, has, samples};

/// Sends every sample event of the workspace to its function, and compares the responses with those
/// in `tests/answers`. The failure names all events with another response.
pub async fn samples_are_answered() {
    let (local, is_whole) = LocalStack::start_whole().await;
    let read = if is_whole { all_samples } else { samples };
    let http = ledgerline_local::http_client();
    let mut wrong = Vec::new();
    for sample in read(&workspace()).unwrap() {
        let url =
            format!("{}/2015-03-31/functions/{}/invocations", local.aws_url(), sample.function);
        let answer = http.post(url).json(&sample.event).send().await.unwrap();
        let failed = answer.headers().contains_key("x-amz-function-error");
        let answer: Value = answer.json().await.unwrap();
        if failed || !has(&answer, &sample.answer) {
            let Sample { path, step, about, answer: expected, .. } = sample;
            wrong.push(format!(
                "`events/{path}` is answered with {answer}, but step {step} ({about}) in \
                 `tests/answers/{path}` expects {expected}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
