//! What can be asked about accounts.

use bank::views::{balances, transactions};
use http::StatusCode;
use ledgerline_dynamodb::{PageQuery, ReadTable, TableError};
use ledgerline_lambda::{
    Error, config, dynamodb,
    http::{HttpRequest, Problem, Response, Routes},
    queries::{Patience, conditional, limit, listed, problem},
};
use serde_json::{Value, json};

/// The longest owner that an account can have, in characters.
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
        queries.balances.get::<balances::Row>(&[("accountId", "connect")]).await?;
        Ok(queries)
    }

    /// The row of an account, if it is the caller's. To everybody else it is as if it were not there, also while they wait
    /// for a version of it: how long they wait must not tell either.
    async fn balance(&self, id: &str, actor: &str) -> Result<Option<balances::Row>, TableError> {
        let row = self.balances.get::<balances::Row>(&[("accountId", id)]).await?;
        Ok(row.filter(|row| row.opened_by.as_deref() == Some(actor)))
    }

    async fn account(&self, request: &HttpRequest) -> Result<Response, Problem> {
        let (id, actor) = (request.path_uuid("id")?.to_string(), request.actor()?);
        let shown = async || {
            let row = self.balance(&id, actor).await?;
            Ok((row.as_ref().map_or(0, |row| row.version), row))
        };
        let (version, row) = self.patience.read(request, shown).await?;
        conditional(request, version, account(&row.ok_or_else(unknown_account)?))
    }

    async fn transactions(&self, request: &HttpRequest) -> Result<Response, Problem> {
        let (id, actor) = (request.path_uuid("id")?.to_string(), request.actor()?);
        let stream = format!("{}-{id}", bank::account::CATEGORY);
        let (limit, cursor) = (limit(request)?, request.query("cursor")?);
        // The position first: the rows, read strongly after it, show at least this version. Whose they are is in the
        // row of the balance; until that is there, nothing is shown.
        let shown = async || {
            let (position, balance) = tokio::join!(
                self.transactions.position(&transactions::TABLE, &stream),
                self.balance(&id, actor)
            );
            Ok((if balance?.is_some() { position? } else { 0 }, ()))
        };
        let (version, ()) = self.patience.read(request, shown).await?;
        if version == 0 {
            return Err(unknown_account());
        }
        let query = PageQuery {
            index: None,
            partition: (transactions::TABLE.partition, &id),
            keys: &[transactions::TABLE.sort],
            starts_with: None,
            newest_first: true,
            limit,
            cursor: cursor.as_deref(),
        };
        let page = self.transactions.page::<transactions::Row>(&query).await.map_err(problem)?;
        let rows: Vec<_> = page.rows.iter().map(transaction).collect();
        conditional(request, version, listed("transactions", json!(rows), page.cursor))
    }

    async fn accounts(&self, request: &HttpRequest) -> Result<Response, Problem> {
        let owner = request.query("owner")?;
        if owner.as_ref().is_some_and(|owner| !(1..=MAX_OWNER).contains(&owner.chars().count())) {
            return Err(Problem::field("owner", format!("an owner has 1 to {MAX_OWNER} characters")));
        }
        let owned = owner.map(|owner| balances::listing(&owner, ""));
        let (limit, cursor) = (limit(request)?, request.query("cursor")?);
        let query = PageQuery {
            index: Some(balances::BY_OPENER),
            partition: ("openedBy", request.actor()?),
            keys: &["listing", "accountId"],
            starts_with: owned.as_deref(),
            newest_first: false,
            limit,
            cursor: cursor.as_deref(),
        };
        let page = self.balances.page::<balances::Row>(&query).await.map_err(problem)?;
        let rows: Vec<_> = page.rows.iter().map(account).collect();
        Ok(Response::json(StatusCode::OK, listed("accounts", json!(rows), page.cursor)))
    }
}

impl Routes for AccountQueries {
    async fn handle(&self, request: &HttpRequest) -> Result<Response, Problem> {
        match request.route() {
            "GET /accounts/{id}" => self.account(request).await,
            "GET /accounts/{id}/transactions" => self.transactions(request).await,
            "GET /accounts" => self.accounts(request).await,
            _ => Err(Problem::no_route()),
        }
    }
}

fn unknown_account() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "unknown-account", "there is no such account")
}

/// What a client sees of an account: not how it is listed.
fn account(row: &balances::Row) -> Value {
    let balances::Row {
        account_id,
        opened_by: _,
        listing: _,
        owner,
        currency,
        total_balance,
        last_month,
        last_month_balance,
        status,
        version,
    } = row;
    let mut shown = json!({
        "accountId": account_id,
        "owner": owner,
        "currency": currency,
        "totalBalance": total_balance,
        "lastMonthBalance": last_month_balance,
        "status": status,
        "version": version,
    });
    if let Some(last_month) = last_month {
        shown["lastMonth"] = json!(last_month);
    }
    shown
}

/// What a client sees of a transaction: not its keys.
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
