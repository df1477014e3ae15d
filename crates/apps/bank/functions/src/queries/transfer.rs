//! Where transfers stand: each caller's own.

use bank::views::transfers::{Row, TABLE};
use http::StatusCode;
use ledgerline_dynamodb::ReadTable;
use ledgerline_lambda::{
    Error, config, dynamodb,
    http::{HttpRequest, Problem, Response, Routes},
    queries::{Patience, conditional},
};
use serde_json::{Value, json};

/// The read table of transfers.
#[derive(Debug)]
pub struct TransferQueries {
    table: ReadTable,
    patience: Patience,
}

impl TransferQueries {
    /// From `TRANSFERS_TABLE` and `READ_YOUR_WRITE_TIMEOUT_MS`.
    ///
    /// # Errors
    /// When a variable is missing or wrong.
    pub async fn from_env() -> Result<Self, Error> {
        let (table, patience) = (config::text("TRANSFERS_TABLE")?, Patience::from_env()?);
        let table = ReadTable::new(dynamodb().await, table);
        table.connect(TABLE.key).await;
        Ok(Self { table, patience })
    }

    async fn transfer(&self, request: &HttpRequest) -> Result<Response, Problem> {
        let (id, actor) = (request.path_uuid("id")?.to_string(), request.actor()?);
        let yours = async || {
            let (version, row) = self.table.shown::<Row>(&TABLE, &id).await?;
            let yours = row.filter(|row| row.requested_by.as_deref() == Some(actor));
            Ok((yours.as_ref().map_or(0, |_| version), yours))
        };
        let (version, row) = self.patience.read(request, yours).await?;
        let row = row.ok_or_else(|| {
            Problem::new(StatusCode::NOT_FOUND, "unknown-transfer", "there is no such transfer")
        })?;
        conditional(request, version, shown(&row))
    }
}

impl Routes for TransferQueries {
    async fn handle(&self, request: &HttpRequest) -> Result<Response, Problem> {
        match request.route() {
            "GET /transfers/{id}" => self.transfer(request).await,
            _ => Err(Problem::no_route()),
        }
    }
}

/// What a client sees of a transfer.
fn shown(row: &Row) -> Value {
    let Row {
        transfer_id,
        requested_by: _,
        status,
        from_account_id,
        to_account_id,
        amount,
        currency,
        reference,
        reason,
        version,
    } = row;
    let mut shown = json!({
        "transferId": transfer_id,
        "status": status,
        "fromAccountId": from_account_id,
        "toAccountId": to_account_id,
        "amount": amount,
        "currency": currency,
        "version": version,
    });
    for (name, text) in [("reference", reference), ("reason", reason)] {
        if let Some(text) = text {
            shown[name] = json!(text);
        }
    }
    shown
}
