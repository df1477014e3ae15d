//! The whole tank application: its sample events, and requests that no well-behaved client sends.

#[tokio::test]
async fn sample_events_are_answered() {
    ledgerline_testing::samples_are_answered().await;
}

#[tokio::test]
async fn any_request_is_answered() {
    ledgerline_testing::any_request_is_answered().await;
}
