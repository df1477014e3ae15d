//! The contracts of stores of views.

use ledgerline::contract::{log_row_store, state_row_store};
use ledgerline_postgres::{PostgresLogRows, PostgresStateRows};

use ledgerline_testing::has_postgres;

use super::database;

mod log_rows {
    use super::*;

    ledgerline::log_row_store_tests!(match has_postgres() {
        true => async { PostgresLogRows::new(database().await, log_row_store::TABLE, "") },
        false => return,
    });
}

mod state_rows {
    use super::*;

    ledgerline::state_row_store_tests!(match has_postgres() {
        true => async { PostgresStateRows::new(database().await, state_row_store::TABLE, "") },
        false => return,
    });
}
