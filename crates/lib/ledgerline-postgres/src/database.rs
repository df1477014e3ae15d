//! The connection to a database.

use std::{
    fmt::{self, Display},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use aws_types::SdkConfig;
use futures::future::join_all;
use ledgerline::{manifest::Manifest, view_store::ViewError};
use ledgerline_lambda::config::{self, ConfigError};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, pem::PemObject},
};
use tokio::sync::{Mutex, MutexGuard};
use tokio_postgres::{
    Client, Config, Row,
    config::{Host, SslMode},
    types::{ToSql, Type},
};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::{
    password::{Login, MakePassword, make_passwords},
    server_error::ServerError,
};

/// The longest time in which a connection is opened, and in which the database answers. A function
/// behind a queue has ten seconds.
const TIME_LIMIT: Duration = Duration::from_secs(5);

/// The values of a statement's parameters, with their types. Statements have no names, because a
/// pooler such as PgBouncer gives each transaction another connection.
pub(crate) type Values<'v> = &'v [(&'v (dyn ToSql + Sync), Type)];

/// A statement with its values.
#[derive(Clone, Copy)]
pub(crate) struct Statement<'s> {
    pub(crate) sql: &'s str,
    pub(crate) values: Values<'s>,
}

/// The variable with the URL of the database. Without a password in the URL, the role logs in by
/// IAM.
const URL: &str = "DATABASE_URL";
/// The variable with the name of a file of certificates.
const AUTHORITIES: &str = "DATABASE_CA";

/// A database, with one connection, which is opened when it is needed. Cheap to clone.
#[derive(Clone)]
pub struct Database(Arc<Inner>);

struct Inner {
    config: Config,
    tls: MakeRustlsConnect,
    make_password: Option<MakePassword>,
    /// A transaction takes the connection out, and puts it back at its end. So a transaction that
    /// is dropped closes the connection, and the server rolls it back.
    connection: Mutex<Option<Arc<Client>>>,
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database")
            .field("name", &self.0.config.get_dbname())
            .finish_non_exhaustive()
    }
}

/// A setting with which no database can be reached. The text has no password.
#[derive(Debug, thiserror::Error)]
pub enum InvalidDatabase {
    /// The address cannot be used.
    #[error("{0}")]
    Address(&'static str),
    /// The certificates of authorities cannot be read.
    #[error("{0}")]
    Authorities(String),
}

/// Returns the user and the server of an address without a password.
fn login(config: &Config) -> Result<Login, &'static str> {
    let [Host::Tcp(host)] = config.get_hosts() else { return Err("the URL must name one host") };
    let user = config.get_user().ok_or("the URL names no user")?.to_owned();
    let port = config.get_ports().first().copied().unwrap_or(5432);
    Ok(Login { host: host.clone(), port, user })
}

impl Database {
    /// Adds the variables of [`from_env`](Self::from_env) to a manifest.
    #[must_use]
    pub fn declare(manifest: Manifest) -> Manifest {
        manifest.call("rds-db:connect", URL).optional(AUTHORITIES)
    }

    /// Returns the database that `DATABASE_URL` names. If it has no password, each new connection
    /// has one of IAM. `DATABASE_CA` may name a file with the certificates of authorities.
    ///
    /// # Errors
    /// When a variable is missing or not valid. The error has no password.
    pub fn from_env(sdk: &SdkConfig) -> Result<Self, ConfigError> {
        let invalid = |name: &'static str, reason: &dyn Display| ConfigError::Invalid {
            name: name.into(),
            reason: reason.to_string(),
        };
        let url = config::text(URL)?;
        let authorities = config::parse_or(AUTHORITIES, PathBuf::new())?;
        let authorities = Some(authorities).filter(|file| !file.as_os_str().is_empty());
        let mut inner = Inner::new(&url, authorities).map_err(|error| match &error {
            InvalidDatabase::Address(_) => invalid(URL, &error),
            InvalidDatabase::Authorities(_) => invalid(AUTHORITIES, &error),
        })?;
        if inner.config.get_password().is_none() {
            let make = login(&inner.config).and_then(|login| make_passwords(sdk, login));
            inner.make_password = Some(make.map_err(|reason| invalid(URL, &reason))?);
        }
        Ok(Self(Arc::new(inner)))
    }

    /// Returns the database of this address, such as `postgresql://user:password@host/name`. The
    /// server must have a certificate for its name, from an authority in the PEM file
    /// `authorities`, or, without a file, from one of the system.
    ///
    /// # Errors
    /// When the address is not valid, or the file has no certificate.
    pub fn new(url: &str, authorities: Option<PathBuf>) -> Result<Self, InvalidDatabase> {
        Ok(Self(Arc::new(Inner::new(url, authorities)?)))
    }

    /// Runs a statement without values and without rows, such as a definition.
    ///
    /// # Errors
    /// When the database fails, or refuses it.
    pub async fn execute(&self, sql: &str) -> Result<(), ViewError> {
        self.run(Statement { sql, values: &[] }).await?;
        Ok(())
    }

    /// Runs a statement by itself, and returns its rows. If the connection was closed while the
    /// function was frozen, it is opened again, and the statement runs once more. So it must have
    /// the same effect twice.
    pub(crate) async fn run(&self, statement: Statement<'_>) -> Result<Vec<Row>, ServerError> {
        let (client, was_open) = self.client(&mut *self.0.connection.lock().await).await?;
        let error = match run_one(&client, statement).await {
            Err(error) if error.ends_connection() => error,
            result => return result,
        };
        let client = {
            let mut connection = self.0.connection.lock().await;
            // Another task may have opened the connection again.
            connection.take_if(|current| Arc::ptr_eq(current, &client));
            if !was_open || matches!(error, ServerError::TimedOut(_)) {
                return Err(error);
            }
            self.client(&mut connection).await?.0
        };
        run_one(&client, statement).await
    }

    /// Reads rows of a view; none if its tables do not exist, because its projector has not started.
    pub(crate) async fn read(&self, statement: Statement<'_>) -> Result<Vec<Row>, ServerError> {
        match self.run(statement).await {
            Err(error) if error.is_missing_table() => Ok(Vec::new()),
            result => result,
        }
    }

    /// Begins a transaction, and runs its first statements. Returns their rows. If the connection
    /// was closed while the function was frozen, it is opened again: nothing of the transaction was
    /// stored.
    pub(crate) async fn begin(
        &self,
        first: &[Statement<'_>],
    ) -> Result<(Transaction<'_>, Vec<Vec<Row>>), ServerError> {
        let mut connection = self.0.connection.lock().await;
        let statements = [&[Statement { sql: "BEGIN", values: &[] }], first].concat();
        let (mut client, was_open) = self.client(&mut connection).await?;
        // The transaction that fails ends with its connection.
        connection.take();
        let mut result = run_all(&client, &statements).await;
        let is_closed = |error: &ServerError| {
            error.ends_connection() && !matches!(error, ServerError::TimedOut(_))
        };
        if was_open && result.as_ref().is_err_and(is_closed) {
            client = self.open().await?;
            result = run_all(&client, &statements).await;
        }
        let mut rows = result?;
        rows.remove(0);
        Ok((Transaction { client, connection }, rows))
    }

    /// Returns the connection, and whether it was open already.
    async fn client(
        &self,
        connection: &mut Option<Arc<Client>>,
    ) -> Result<(Arc<Client>, bool), ServerError> {
        if let Some(client) = connection.as_ref().filter(|client| !client.is_closed()) {
            return Ok((Arc::clone(client), true));
        }
        let client = self.open().await?;
        *connection = Some(Arc::clone(&client));
        Ok((client, false))
    }

    /// Opens a connection. The limit of the library ends with TCP: a server that accepts and is
    /// then silent would never end the login.
    async fn open(&self) -> Result<Arc<Client>, ServerError> {
        let mut config = self.0.config.clone();
        let login = async {
            if let Some(make_password) = &self.0.make_password {
                config.password(make_password().await.map_err(ServerError::Password)?);
            }
            Ok::<_, ServerError>(config.connect(self.0.tls.clone()).await?)
        };
        let (client, connection) = within_limit(login).await?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                let error = ServerError::from(error);
                tracing::debug!(%error, "the connection to the database ended");
            }
        });
        Ok(Arc::new(client))
    }
}

impl Inner {
    fn new(url: &str, authorities: Option<PathBuf>) -> Result<Self, InvalidDatabase> {
        // The error may quote the address, which has the password.
        let config = url.parse::<Config>();
        let mut config = config.map_err(|_| {
            InvalidDatabase::Address(
                "the URL is no address of PostgreSQL; write `postgresql://user@host/name`",
            )
        })?;
        if config.get_dbname().is_none() {
            return Err(InvalidDatabase::Address("the URL names no database; add `/name`"));
        }
        config.ssl_mode(SslMode::Require).connect_timeout(TIME_LIMIT).tcp_user_timeout(TIME_LIMIT);
        let roots = read_authorities(authorities)?;
        let tls = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        Ok(Self {
            config,
            tls: MakeRustlsConnect::new(tls),
            make_password: None,
            connection: Mutex::default(),
        })
    }
}

/// Waits for an answer of the database, at most for [`TIME_LIMIT`]. A connection that a network
/// dropped in silence, while the function was frozen, would never answer.
async fn within_limit<T, E>(answer: impl Future<Output = Result<T, E>>) -> Result<T, ServerError>
where
    ServerError: From<E>,
{
    let answer = tokio::time::timeout(TIME_LIMIT, answer).await;
    Ok(answer.map_err(|_| ServerError::TimedOut(TIME_LIMIT))??)
}

async fn run_one(client: &Client, statement: Statement<'_>) -> Result<Vec<Row>, ServerError> {
    within_limit(client.query_typed(statement.sql, statement.values)).await
}

/// Runs statements one after the other, in one round trip. Returns the rows of each, or the first
/// error.
async fn run_all(
    client: &Client,
    statements: &[Statement<'_>],
) -> Result<Vec<Vec<Row>>, ServerError> {
    // Each is sent when it is polled for the first time, in this order. All answers are read, so
    // that the connection is at the end of the transaction even after an error.
    let all =
        statements.iter().map(|statement| client.query_typed(statement.sql, statement.values));
    let all = async { join_all(all).await.into_iter().collect::<Result<_, _>>() };
    within_limit::<_, tokio_postgres::Error>(all).await
}

/// A transaction. If it is dropped, the server rolls it back.
pub(crate) struct Transaction<'d> {
    client: Arc<Client>,
    connection: MutexGuard<'d, Option<Arc<Client>>>,
}

impl Transaction<'_> {
    /// Runs these statements and commits, in one round trip. After an error nothing is stored,
    /// unless the connection broke: then the server may have committed.
    pub(crate) async fn commit(mut self, statements: &[Statement<'_>]) -> Result<(), ServerError> {
        let commit = Statement { sql: "COMMIT", values: &[] };
        let result = run_all(&self.client, &[statements, &[commit]].concat()).await;
        // After an error in between, COMMIT rolls back.
        if !result.as_ref().is_err_and(ServerError::ends_connection) {
            *self.connection = Some(self.client);
        }
        result.map(|_| ())
    }

    /// Runs a script, such as the definition of tables. It has no time limit of its own.
    pub(crate) async fn run_script(&self, sql: &str) -> Result<(), ServerError> {
        Ok(self.client.batch_execute(sql).await?)
    }

    /// Runs a statement, and returns its rows.
    pub(crate) async fn run(&self, statement: Statement<'_>) -> Result<Vec<Row>, ServerError> {
        run_one(&self.client, statement).await
    }

    /// Ends the transaction without a change.
    pub(crate) async fn roll_back(mut self) -> Result<(), ServerError> {
        run_all(&self.client, &[Statement { sql: "ROLLBACK", values: &[] }]).await?;
        *self.connection = Some(self.client);
        Ok(())
    }
}

fn read_authorities(file: Option<PathBuf>) -> Result<RootCertStore, InvalidDatabase> {
    let mut roots = RootCertStore::empty();
    let Some(file) = file else {
        // One certificate that this program cannot read does not matter among those of a system.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        let none = "the system has no certificates of authorities";
        return if roots.is_empty() {
            Err(InvalidDatabase::Authorities(none.into()))
        } else {
            Ok(roots)
        };
    };
    let name = file.display();
    let wrong = |error: &dyn Display| {
        InvalidDatabase::Authorities(format!("`{name}` cannot be read: {error}"))
    };
    let certificates =
        CertificateDer::pem_file_iter(&file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    for certificate in certificates.map_err(|error| wrong(&error))? {
        roots.add(certificate).map_err(|error| wrong(&error))?;
    }
    match roots.is_empty() {
        true => Err(InvalidDatabase::Authorities(format!("`{name}` has no certificate"))),
        false => Ok(roots),
    }
}
