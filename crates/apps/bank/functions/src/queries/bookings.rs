//! The query about all bookings, for callers with the scope to see the data of all callers.

use std::collections::BTreeMap;

use bank::{
    account::Account,
    views::bookings::{Books, Day, Row, TABLE},
};
use ledgerline::{
    Aggregate, Id,
    manifest::{Action, Scope, Table},
};
use ledgerline_dynamodb::PageQuery;
use ledgerline_lambda::{
    http::{HttpRequest, Problem, Response},
    queries::{PAGE, Query, Views, Visibility, in_answers, limit, listed, problem},
};
use serde_json::{Value, json};

/// The routes.
#[must_use]
pub fn routes() -> Vec<Query> {
    let table = Table::with(TABLE, [Action::GetItem, Action::Query]);
    let bookings = Query::new("GET /bookings", [table], bookings).read_your_writes::<Account>();
    vec![bookings.parameters(PAGE).parameters(["day", "accountId"]).scope(Scope::Events)]
}

/// Returns the bookings of a day, the oldest first. Without a day, it is that of the last booking.
async fn bookings(views: &Views, request: &HttpRequest) -> Result<Response, Problem> {
    request.actor()?;
    let day = request.query_value::<Day>("day", "day is a date: 2026-11-24")?;
    let limit = limit(request)?;
    let cursor = request.query("cursor")?;
    if cursor.is_some() && day.is_none() {
        // Another day may be the last one since the cursor's page.
        return Err(Problem::field("day", "a cursor goes with the day of its page"));
    }
    let table = views.log_rows(TABLE)?;
    wait(views, request).await?;
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
    let day = day.unwrap_or_else(|| books.day()).to_string();
    let page = PageQuery::of(&day, limit, cursor.as_deref());
    let page = table.page::<Row>(&page).await.map_err(problem)?;
    let mut body = listed("bookings", in_answers(page, shown));
    body["day"] = day.into();
    body["last"] = books.number.into();
    let held: BTreeMap<_, _> =
        books.held.iter().map(|(currency, sums)| (currency, sums.held())).collect();
    body["held"] = json!(held);
    Ok(Response::of_version(books.number, body))
}

/// Waits for the version of an account that the request names with `accountId` and `minVersion`.
async fn wait(views: &Views, request: &HttpRequest) -> Result<(), Problem> {
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

/// Returns the fields of a booking for clients, without its keys.
fn shown(row: &Row) -> Value {
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
    json!({
        "number": number,
        "accountId": account_id,
        "version": version,
        "kind": kind,
        "amount": amount,
        "currency": currency,
        "balance": balance,
        "held": held,
        "at": at,
    })
}
