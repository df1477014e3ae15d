//! The meaning of the errors of a server, in one place.
//!
//! Source: the manual of PostgreSQL, appendix A, "PostgreSQL Error Codes".

use std::time::Duration;

use ledgerline::view_store::ViewError;
use tokio_postgres::error::{DbError, SqlState};

/// The failure of a call of the database. Its text has no value of a row (rule 14): the details of
/// a server quote them, and so do its messages about data.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServerError {
    /// The server refuses the call.
    #[error("{}: {text}", code.code())]
    Refused { code: SqlState, text: String },
    /// The server cannot be reached, or the connection broke.
    #[error(transparent)]
    Connection(tokio_postgres::Error),
    /// The password of a new connection cannot be made.
    #[error("no password: {0}")]
    Password(String),
    #[error("the database did not answer in {0:?}")]
    TimedOut(Duration),
}

/// The classes of refusals that are not the fault of a row: all rows would fail like this one. The
/// server lacks a connection, a right, the database, a table, room or time.
const OUTAGES: [&str; 11] = ["08", "25", "28", "3D", "3F", "40", "53", "55", "57", "58", "XX"];

impl From<tokio_postgres::Error> for ServerError {
    fn from(error: tokio_postgres::Error) -> Self {
        match error.as_db_error() {
            Some(server) => Self::Refused { code: server.code().clone(), text: describe(server) },
            None => Self::Connection(error),
        }
    }
}

impl ServerError {
    /// Whether the connection of this error is unusable. The server may be unreachable, may be
    /// closing its connections, or may be a standby after a failover. A new connection then
    /// resolves the host name again.
    pub(crate) fn ends_connection(&self) -> bool {
        match self {
            Self::Refused { code, .. } => {
                let is_ending = code.code().starts_with("08") || code.code().starts_with("57P");
                is_ending || *code == SqlState::READ_ONLY_SQL_TRANSACTION
            }
            Self::Connection(_) | Self::Password(_) | Self::TimedOut(_) => true,
        }
    }

    /// Whether the tables of the view do not exist.
    pub(crate) fn is_missing_table(&self) -> bool {
        let missing = [SqlState::UNDEFINED_TABLE, SqlState::INVALID_SCHEMA_NAME];
        matches!(self, Self::Refused { code, .. } if missing.contains(code))
    }
}

impl From<ServerError> for ViewError {
    fn from(error: ServerError) -> Self {
        let ServerError::Refused { code, .. } = &error else {
            return Self::Unavailable(Box::new(error));
        };
        match code.code() {
            // Two transactions conflict, a lock or a statement lasts too long, or all connections
            // are taken.
            "40001" | "40P01" | "55P03" | "57014" | "53300" => Self::Throttled(error.to_string()),
            // A missing right, or a missing table.
            "42501" | "42P01" => Self::Unavailable(Box::new(error)),
            code if OUTAGES.contains(&&code[..2]) => Self::Unavailable(Box::new(error)),
            _ => Self::Row(error.to_string()),
        }
    }
}

/// Describes a refusal without values of rows.
fn describe(error: &DbError) -> String {
    let class = &error.code().code()[..2];
    // The messages of these classes have names alone.
    if class == "42" || OUTAGES.contains(&class) {
        return error.message().to_owned();
    }
    // The details of this class name the objects that depend on another one.
    if class == "2B" {
        return [error.message(), error.detail().unwrap_or_default()].join(": ");
    }
    let names =
        [("table", error.table()), ("column", error.column()), ("constraint", error.constraint())];
    let names = names.into_iter().filter_map(|(kind, name)| Some(format!(", {kind} `{}`", name?)));
    format!("the database refuses a value{}", names.collect::<String>())
}
