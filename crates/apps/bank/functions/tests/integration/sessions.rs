//! The sessions in the documents are real.

use ledgerline_testing::{session_of_application_is_real, sessions_are_real, workspace};

#[tokio::test]
async fn the_session_in_the_readme_is_real() {
    sessions_are_real(&workspace().join("README.md")).await;
}

#[tokio::test]
async fn the_session_of_the_application_is_real() {
    session_of_application_is_real().await;
}

#[tokio::test]
async fn the_session_in_the_order_document_is_real() {
    sessions_are_real(&workspace().join("docs/order.md")).await;
}
