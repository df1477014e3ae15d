//! Every sample event is answered as the table beside it says, by the functions themselves.

#[tokio::test]
async fn every_sample_event_is_answered_as_documented() {
    ledgerline_testing::samples_are_answered().await;
}

#[tokio::test]
async fn every_route_answers_any_request_without_failing_and_ignores_nothing() {
    ledgerline_testing::any_request_is_answered().await;
}
