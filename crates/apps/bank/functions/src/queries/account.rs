//! The queries about accounts.

use bank::{
    account::{Account, UNKNOWN},
    values::Owner,
    views::{
        balances::{self, Status},
        transactions::{self, Kind},
    },
};
use jiff::{Timestamp, civil::Date};
use ledgerline::{
    Aggregate, Id,
    manifest::{Action, Table},
};
use ledgerline_dynamodb::PageQuery;
use ledgerline_lambda::{
    http::{HttpRequest, Problem},
    queries::{
        Answer, KeyRange, PageEnd, Query, Views, VisibleTo, limit, page, problem, row, split_page,
        state,
    },
};
use schemars::JsonSchema;
use serde::Serialize;

/// The accounts that a caller may see: those that the caller opened.
pub(super) const YOURS: VisibleTo<balances::Row> = VisibleTo::Owner(|row| row.opened_by.as_deref());

/// The routes.
#[must_use]
pub fn routes() -> Vec<Query> {
    let tables = [
        Table::grant(transactions::TABLE, [Action::GetItem, Action::Query]),
        Table::grant(balances::TABLE, [Action::GetItem]),
    ];
    vec![
        row::<Account, _, _>("GET /accounts/{id}", balances::TABLE, UNKNOWN, YOURS, account),
        state::<Account, _, _>("GET /accounts/{id}/state", balances::row, UNKNOWN, YOURS, account),
        page(
            "GET /accounts",
            "accounts",
            balances::TABLE,
            balances::OF_OPENER,
            own_accounts,
            account,
        )
        .parameter::<Owner>("owner"),
        Query::new("GET /accounts/{id}/transactions", tables, transactions)
            .read_your_writes::<Account>()
            .with_pages()
            .refusals(&[UNKNOWN]),
    ]
}

/// Selects the caller's accounts, or those of one owner among them.
fn own_accounts(request: &HttpRequest) -> Result<KeyRange, Problem> {
    let owner = request.query("owner")?.map(Owner::new).transpose();
    let owner = owner.map_err(|error| Problem::field("owner", error.to_string()))?;
    Ok(KeyRange {
        starts_with: owner.map(|owner| balances::listing(owner.get(), "")),
        ..KeyRange::from_caller(request)?
    })
}

/// Returns the transactions of an account, the newest first. The row of the balance names their
/// owner; without that row, none are shown.
async fn transactions(
    views: &Views,
    request: &HttpRequest,
) -> Result<Answer<Transactions>, Problem> {
    let id = request.path_value::<Id>("id")?;
    let stream =
        Account::stream(id.get()).map_err(|error| Problem::field("id", error.to_string()))?;
    let limit = limit(request)?;
    let cursor = request.query("cursor")?;
    let version = views
        .visible_version(request, &stream, transactions::TABLE, balances::TABLE, YOURS)
        .await?;
    if version == 0 {
        return Err(Problem::from(&UNKNOWN));
    }
    let query = PageQuery::new(id.get(), limit, cursor.as_deref());
    let query = PageQuery { newest_first: true, ..query };
    let rows = views.log_rows(transactions::TABLE)?;
    let page = rows.page::<transactions::Row>(&query).await.map_err(problem)?;
    let (transactions, end) = split_page(page, transaction);
    Ok(Answer::new(Transactions { transactions, end }).with_version(version))
}

/// An account.
#[derive(JsonSchema, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "Account")]
struct ShownAccount {
    account_id: String,
    owner: String,
    /// The currency, as an ISO 4217 code.
    currency: String,
    /// The balance in minor units.
    total_balance: i64,
    /// The first day of the calendar month (UTC) of the latest booking of money.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_month: Option<Date>,
    /// The credits minus the debits of that month, in minor units.
    last_month_balance: i64,
    status: Status,
    version: u64,
}

/// The transactions of an account, the newest first.
#[derive(JsonSchema, Serialize)]
pub(super) struct Transactions {
    pub(super) transactions: Vec<Transaction>,
    #[serde(flatten)]
    pub(super) end: PageEnd,
}

/// A credit or a debit of an account.
#[derive(JsonSchema, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Transaction {
    /// The version of the account after the commit.
    version: u64,
    kind: Kind,
    /// The amount in minor units.
    amount: i64,
    /// The balance after the entry, in minor units.
    balance: i64,
    /// The payer's note.
    #[serde(skip_serializing_if = "Option::is_none")]
    reference: Option<String>,
    /// The booking date, in UTC.
    booked_on: Date,
    /// The time of the commit.
    at: Timestamp,
}

/// Returns the fields of an account for clients, without the keys of its list.
fn account(row: balances::Row) -> ShownAccount {
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
    ShownAccount {
        account_id,
        owner,
        currency,
        total_balance,
        last_month,
        last_month_balance,
        status,
        version,
    }
}

/// Returns the fields of a transaction for clients, without its keys.
pub(super) fn transaction(row: transactions::Row) -> Transaction {
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
    Transaction { version, kind, amount, balance, reference, booked_on, at }
}
