//! What can be asked about accounts.

use http::StatusCode;
use lambda_kit::{
    Error, config, dynamodb,
    http::{HttpRequest, Problem, Response, Routes},
    queries::{Patience, conditional, limit, listed, problem},
};
use read_models::{balances, transactions};
use read_models_dynamodb::{PageQuery, ReadTable};
use serde_json::{Value, json};

/// The longest owner that an account can have, in characters. A longer one is no key of the index.
const MAX_OWNER: usize = 200;

/// The read tables of accounts.
#[derive(Debug)]
pub struct AccountQueries {
    balances: ReadTable,
    transactions: ReadTable,
    patience: Patience,
}

impl AccountQueries {
    /// Answers from these tables.
    #[must_use]
    pub fn new(balances: ReadTable, transactions: ReadTable, patience: Patience) -> Self {
        Self { balances, transactions, patience }
    }

    /// From `BALANCES_TABLE`, `TRANSACTIONS_TABLE` and `READ_YOUR_WRITE_TIMEOUT_MS`.
    ///
    /// # Errors
    /// When a variable is missing or wrong, or a table cannot be read.
    pub async fn from_env() -> Result<Self, Error> {
        let (balances, transactions) = (config::text("BALANCES_TABLE")?, config::text("TRANSACTIONS_TABLE")?);
        let patience = Patience::from_env()?;
        let client = dynamodb().await;
        let queries = Self::new(
            ReadTable::new(client.clone(), balances),
            ReadTable::new(client, transactions),
            patience,
        );
        // Opens the connection during init.
        queries.balance("connect").await?;
        Ok(queries)
    }

    async fn balance(
        &self,
        id: &str,
    ) -> Result<(u64, Option<balances::Row>), read_models_dynamodb::TableError> {
        let row = self.balances.get::<balances::Row>(&[("accountId", id)]).await?;
        Ok((row.as_ref().map_or(0, |row| row.version), row))
    }

    async fn account(&self, request: &HttpRequest) -> Result<Response, Problem> {
        let id = request.path_uuid("id")?.to_string();
        let (version, row) = self.patience.read(request, async || self.balance(&id).await).await?;
        match row {
            Some(row) => conditional(request, version, json!(row)),
            None => Err(unknown_account()),
        }
    }

    async fn transactions(&self, request: &HttpRequest) -> Result<Response, Problem> {
        let id = request.path_uuid("id")?.to_string();
        let stream = format!("{}-{id}", domain::account::CATEGORY);
        let (limit, cursor) = (limit(request)?, request.query("cursor")?);
        // The position first: the rows, read strongly after it, show at least this version.
        let position = async || Ok((self.transactions.position(&transactions::TABLE, &stream).await?, ()));
        let (version, ()) = self.patience.read(request, position).await?;
        if version == 0 {
            return Err(unknown_account());
        }
        let query = PageQuery {
            index: None,
            partition: (transactions::TABLE.partition, &id),
            sort: transactions::TABLE.sort,
            newest_first: true,
            limit,
            cursor: cursor.as_deref(),
        };
        let page = self.transactions.page::<transactions::Row>(&query).await.map_err(problem)?;
        let rows: Vec<_> = page.rows.iter().map(transaction).collect();
        conditional(request, version, listed("transactions", json!(rows), page.cursor))
    }

    async fn accounts_of_owner(&self, request: &HttpRequest) -> Result<Response, Problem> {
        let owner = request.query("owner")?.filter(|owner| (1..=MAX_OWNER).contains(&owner.chars().count()));
        let owner = owner.ok_or_else(|| {
            Problem::field("owner", format!("say whose accounts: ?owner=… with 1 to {MAX_OWNER} characters"))
        })?;
        let (limit, cursor) = (limit(request)?, request.query("cursor")?);
        let query = PageQuery {
            index: Some(balances::BY_OWNER),
            partition: ("owner", &owner),
            sort: "accountId",
            newest_first: false,
            limit,
            cursor: cursor.as_deref(),
        };
        let page = self.balances.page::<balances::Row>(&query).await.map_err(problem)?;
        Ok(Response::json(StatusCode::OK, listed("accounts", json!(page.rows), page.cursor)))
    }
}

impl Routes for AccountQueries {
    async fn handle(&self, request: &HttpRequest) -> Result<Response, Problem> {
        match request.route() {
            "GET /accounts/{id}" => self.account(request).await,
            "GET /accounts/{id}/transactions" => self.transactions(request).await,
            "GET /accounts" => self.accounts_of_owner(request).await,
            _ => Err(Problem::no_route()),
        }
    }
}

fn unknown_account() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "unknown-account", "there is no such account")
}

/// What a client sees of a row: not its keys.
fn transaction(row: &transactions::Row) -> Value {
    let transactions::Row {
        account_id: _,
        entry: _,
        version,
        kind,
        amount,
        balance,
        reference,
        booked_on,
        at,
    } = row;
    let mut shown = json!({
        "version": version,
        "kind": kind,
        "amount": amount,
        "balance": balance,
        "bookedOn": booked_on,
        "at": at,
    });
    if let Some(reference) = reference {
        shown["reference"] = json!(reference);
    }
    shown
}
