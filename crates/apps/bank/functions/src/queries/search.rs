//! The search in the transactions of an account, in PostgreSQL.

use bank::{
    account::UNKNOWN,
    values::Reference,
    views::{balances, transactions},
};
use ledgerline::{
    Id,
    manifest::{Action, Table},
};
use ledgerline_lambda::{
    http::{HttpRequest, Problem},
    queries::{Answer, Query, Views, limit, problem, split_page},
};
use ledgerline_postgres::{LogReader, Selection};

use super::account::{Transactions, YOURS, transaction};

/// The SQL condition of the search: an account, and words in the syntax of `websearch_to_tsquery`,
/// such as `rent -may`.
const CONDITION: &str = "partition = $1 AND \
    to_tsvector('simple', coalesce(row ->> 'reference', '')) @@ websearch_to_tsquery('simple', $2)";

/// The routes.
#[must_use]
pub fn routes() -> Vec<Query> {
    let rows = LogReader::new(transactions::TABLE);
    let reader = rows.clone();
    let answer =
        async move |views: &Views, request: &HttpRequest| search(&reader, views, request).await;
    let balances = Table::grant(balances::TABLE, [Action::GetItem]);
    let query = Query::new("GET /accounts/{id}/transactions/search", [balances], answer);
    vec![
        query
            .read_store(rows)
            .required_parameter::<Reference>("q")
            .with_pages()
            .refusals(&[UNKNOWN])
            .summary("Search the transactions of an account by their references"),
    ]
}

/// Returns the transactions of an account whose references have these words, the newest first. The
/// row of the balance names the owner of the account. Without that row, or for another caller, the
/// account is unknown.
async fn search(
    rows: &LogReader,
    views: &Views,
    request: &HttpRequest,
) -> Result<Answer<Transactions>, Problem> {
    let id = request.path_value::<Id>("id")?;
    let actor = request.actor()?;
    let words = request.query("q")?.ok_or_else(|| Problem::field("q", "say what to find: ?q="))?;
    let words = Reference::new(words).map_err(|error| Problem::field("q", error.to_string()))?;
    let limit = limit(request)?;
    let cursor = request.query("cursor")?;
    let balances = views.state_rows(balances::TABLE)?;
    let (_, balance) = balances.find_row::<balances::Row>(id.get()).await.map_err(problem)?;
    if !balance.is_some_and(|balance| YOURS.includes(&balance, actor)) {
        return Err(Problem::from(&UNKNOWN));
    }
    let selection = Selection {
        condition: CONDITION,
        values: &[id.get(), words.get()],
        newest_first: true,
        limit,
        cursor: cursor.as_deref(),
    };
    let page = rows.page::<transactions::Row>(&selection).await.map_err(problem)?;
    let (transactions, end) = split_page(page, transaction);
    Ok(Answer::new(Transactions { transactions, end }))
}
