//! The commands of the README, run against a local stack.

#[tokio::test]
async fn the_session_in_the_readme_is_real() {
    ledgerline_testing::session_of_application_is_real().await;
}
