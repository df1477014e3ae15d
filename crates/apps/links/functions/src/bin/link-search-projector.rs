//! Writes the links of all users into OpenSearch, from their states, for searches.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    links_functions::link_search_projector().await
}
