//! The query about all bookings, for callers with the scope to see the data of all callers.

use std::collections::BTreeMap;

use bank::{
    account::Account,
    views::{
        bookings::{Books, Day, Held, Row, TABLE},
        transactions::Kind,
    },
};
use jiff::Timestamp;
use ledgerline::{
    Aggregate, Id,
    manifest::{Action, Scope, Table},
};
use ledgerline_dynamodb::PageQuery;
use ledgerline_lambda::{
    http::{HttpRequest, Problem},
    queries::{Answer, PageEnd, Query, Views, Visibility, limit, problem, split_page},
};
use schemars::JsonSchema;
use serde::Serialize;

/// The routes.
#[must_use]
pub fn routes() -> Vec<Query> {
    let table = Table::grant(TABLE, [Action::GetItem, Action::Query]);
    let bookings = Query::new("GET /bookings", [table], bookings).read_your_writes::<Account>();
    let bookings = bookings.with_pages().parameter::<Day>("day").parameter::<Id>("accountId");
    vec![bookings.scope(Scope::Events)]
}

/// Returns the bookings of a day, the oldest first. The default is the day of the last booking.
async fn bookings(views: &Views, request: &HttpRequest) -> Result<Answer<Bookings>, Problem> {
    request.actor()?;
    let day = request.query_value::<Day>("day", "day is a date: 2026-11-24")?;
    let limit = limit(request)?;
    let cursor = request.query("cursor")?;
    if cursor.is_some() && day.is_none() {
        // Another day may be the last one since the cursor's page.
        return Err(Problem::field("day", "`cursor` needs the `day` of its page"));
    }
    let table = views.log_rows(TABLE)?;
    wait_for_account(views, request).await?;
    // The checkpoint is read first, and the rows with a strongly consistent read. So the rows
    // include at least all up to the checkpoint's number.
    let checkpoint = table.checkpoint().await.map_err(problem)?;
    let books: Books = match checkpoint.state.as_str() {
        "" => Books::default(),
        state => serde_json::from_str(state).map_err(|_| {
            tracing::error!("the books in the checkpoint cannot be read");
            Problem::internal()
        })?,
    };
    let day = day.unwrap_or_else(|| books.day());
    let partition = day.to_string();
    let query = PageQuery::new(&partition, limit, cursor.as_deref());
    let page = table.page::<Row>(&query).await.map_err(problem)?;
    let (bookings, end) = split_page(page, booking);
    let held = books.held.into_iter().map(|(currency, sums)| (currency, sums.held())).collect();
    let last_number = books.number;
    Ok(Answer::new(Bookings { bookings, day, last: last_number, held, end })
        .with_version(last_number))
}

/// Waits for the version of an account that the request names with `accountId` and `minVersion`.
async fn wait_for_account(views: &Views, request: &HttpRequest) -> Result<(), Problem> {
    let account = request.query("accountId")?.map(|id| id.parse::<Id>());
    let account =
        account.transpose().map_err(|error| Problem::field("accountId", error.to_string()))?;
    let Some(account) = account else {
        return match request.query("minVersion")? {
            None => Ok(()),
            Some(_) => Err(Problem::field(
                "accountId",
                "minVersion is a version of an account: which one?",
            )),
        };
    };
    let stream = Account::stream(account.get())
        .map_err(|error| Problem::field("accountId", error.to_string()))?;
    let read = async || {
        let (position, _) = views.log_rows(TABLE)?.progress(&stream).await.map_err(problem)?;
        Ok((Visibility::Version(position), ()))
    };
    views.read(request, &stream, read).await.map(|_| ())
}

/// The bookings of a day, the oldest first.
#[derive(JsonSchema, Serialize)]
struct Bookings {
    bookings: Vec<Booking>,
    /// The day, in UTC.
    day: Day,
    /// The number of the last booking of all days.
    last: u64,
    /// The bank's sums by currency, in minor units.
    held: BTreeMap<String, Held>,
    #[serde(flatten)]
    end: PageEnd,
}

/// A booking of an account.
#[derive(JsonSchema, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "LedgerBooking")]
struct Booking {
    /// The booking's number: 1, 2, 3 … without gaps.
    number: u64,
    account_id: String,
    /// The version of the account after the commit.
    version: u64,
    kind: Kind,
    /// The amount in minor units.
    amount: i64,
    currency: String,
    /// The balance of the account after the booking, in minor units.
    balance: i64,
    /// The bank's sums in this currency after the booking; null if the currency is not one of the
    /// first 256.
    held: Option<Held>,
    /// The time of the commit.
    at: Timestamp,
}

/// Returns the fields of a booking for clients, without its keys.
fn booking(row: Row) -> Booking {
    let Row {
        day: _,
        entry: _,
        number,
        account_id,
        version,
        kind,
        amount,
        currency,
        balance,
        held,
        at,
    } = row;
    Booking { number, account_id, version, kind, amount, currency, balance, held, at }
}
