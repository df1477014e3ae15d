//! Answers searches in the links of all users, from OpenSearch.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    links_functions::link_search_queries().await
}
