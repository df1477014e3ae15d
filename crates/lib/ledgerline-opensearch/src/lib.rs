#![doc = include_str!("../README.md")]

mod bulk;
mod domain;
mod reader;
mod search_rows;

pub use self::{domain::Domain, reader::SearchReader, search_rows::SearchRows};

/// The runner of state projectors that write into OpenSearch.
pub mod state_projector {
    use ledgerline::{
        Aggregate, StateView,
        manifest::{Manifest, ViewStore},
    };
    use ledgerline_lambda::{Error, state_projector};
    use serde::Serialize;

    use crate::{Domain, SearchRows, domain::ENDPOINT};

    /// Runs a state projector that writes the rows of this view into OpenSearch. `definition` is
    /// the JSON that creates an index, with its `mappings` and `settings`.
    ///
    /// # Errors
    /// When its configuration is wrong: `COMMITS_TABLE`, `VIEWS_TABLE`, `SEARCH_ENDPOINT`. When the
    /// domain refuses the definition.
    pub async fn run<A: Aggregate, Row: Serialize + 'static>(
        view: StateView<A, Row>,
        definition: &'static str,
    ) -> Result<(), Error> {
        let keys = view.table;
        let declared = manifest(&view);
        let open = async |sdk: &_| Ok(SearchRows::new(Domain::from_env(sdk)?, keys, definition));
        state_projector::run_in_store(view, ViewStore::OpenSearch, declared, open).await
    }

    /// The manifest of the function of this view.
    pub fn manifest<A: Aggregate, Row>(view: &StateView<A, Row>) -> Manifest {
        let manifest = state_projector::manifest_in_store(view, ViewStore::OpenSearch);
        let calls = ["es:ESHttpDelete", "es:ESHttpPost", "es:ESHttpPut"];
        calls.into_iter().fold(manifest, |manifest, call| manifest.call(call, ENDPOINT))
    }
}
