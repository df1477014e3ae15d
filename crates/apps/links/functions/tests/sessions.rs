//! The session in the application's README is real.

use ledgerline_testing::{sessions_are_real, workspace};

#[tokio::test]
async fn the_session_of_the_application_is_real() {
    sessions_are_real(&workspace().join("crates/apps/links/README.md")).await;
}
