//! The runners of projectors that write into PostgreSQL.

use ledgerline::manifest::ViewStore;

/// The store, in manifests.
const STORE: ViewStore = ViewStore::Postgres;

/// The runner of log projectors.
pub mod log_projector {
    use ledgerline::{LogView, manifest::Manifest};
    use ledgerline_lambda::{Error, log_projector};

    use super::STORE;
    use crate::{Database, PostgresLogRows};

    /// Runs a log projector that writes the rows of this view into PostgreSQL. `script` has the
    /// definitions of its indexes; in it, `{generation}` stands for the schema with the table.
    ///
    /// # Errors
    /// When its configuration is wrong: `COMMITS_TABLE`, `VIEWS_TABLE`, `DATABASE_URL`,
    /// `DATABASE_CA`. When the database has a table of the view's name with other columns.
    pub async fn run(view: LogView, script: &'static str) -> Result<(), Error> {
        let open =
            async |sdk: &_| Ok(PostgresLogRows::new(Database::from_env(sdk)?, view.table, script));
        log_projector::run_in_store(view, STORE, manifest(&view), open).await
    }

    /// The manifest of the function of this view.
    pub fn manifest(view: &LogView) -> Manifest {
        Database::declare(log_projector::manifest_in_store(view, STORE))
    }
}

/// The runner of state projectors.
pub mod state_projector {
    use ledgerline::{Aggregate, StateView, manifest::Manifest};
    use ledgerline_lambda::{Error, state_projector};
    use serde::Serialize;

    use super::STORE;
    use crate::{Database, PostgresStateRows};

    /// Runs a state projector that writes the rows of this view into PostgreSQL. `script` has the
    /// definitions of its indexes; in it, `{generation}` stands for the schema with the table.
    ///
    /// # Errors
    /// When its configuration is wrong: `COMMITS_TABLE`, `VIEWS_TABLE`, `DATABASE_URL`,
    /// `DATABASE_CA`. When the database has a table of the view's name with other columns.
    pub async fn run<A: Aggregate, Row: Serialize + 'static>(
        view: StateView<A, Row>,
        script: &'static str,
    ) -> Result<(), Error> {
        let table = view.table;
        let declared = manifest(&view);
        let open =
            async |sdk: &_| Ok(PostgresStateRows::new(Database::from_env(sdk)?, table, script));
        state_projector::run_in_store(view, STORE, declared, open).await
    }

    /// The manifest of the function of this view.
    pub fn manifest<A: Aggregate, Row>(view: &StateView<A, Row>) -> Manifest {
        Database::declare(state_projector::manifest_in_store(view, STORE))
    }
}
