//! Requests that no well-behaved client sends.

#[tokio::test]
async fn every_route_answers_any_request_without_failing_and_ignores_nothing() {
    ledgerline_local::testing::any_request_is_answered().await;
}
