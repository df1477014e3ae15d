//! The requests that write many rows.

use std::{
    mem,
    sync::{Mutex, MutexGuard, PoisonError},
};

use serde_json::Value;
use tokio::sync::{
    Mutex as Turns,
    oneshot::{self, error::TryRecvError},
};

use crate::domain::{Domain, Failure};

/// The most bytes of one request (rule 11), but for a row that is larger. The smallest domains
/// accept 10 MB.
///
/// Source: the developer guide of OpenSearch Service, "Quotas", network limits.
const MAX_BYTES: usize = 4_000_000;

/// The rows for the next request. While a request is on its way, concurrent writes add their rows
/// here, and then share the next one.
#[derive(Debug, Default)]
pub(crate) struct Bulk {
    rows: Mutex<Vec<Row>>,
    turns: Turns<()>,
}

/// The lines of a row, and the way back to its write.
#[derive(Debug)]
struct Row {
    lines: String,
    sender: oneshot::Sender<Result<(), Failure>>,
}

impl Bulk {
    /// Writes one row, by a request to this path. Each row has its own result: a refused row does
    /// not keep the others out (rule 10).
    pub(crate) async fn write(
        &self,
        domain: &Domain,
        path: &str,
        lines: String,
    ) -> Result<(), Failure> {
        let (sender, mut receiver) = oneshot::channel();
        self.rows().push(Row { lines, sender });
        let _turn = self.turns.lock().await;
        loop {
            match receiver.try_recv() {
                Ok(result) => return result,
                Err(TryRecvError::Closed) => {
                    let why = "the write that sent this row, too, was dropped";
                    return Err(Failure::Unreachable(why.to_owned()));
                }
                Err(TryRecvError::Empty) => self.send_oldest(domain, path).await,
            }
        }
    }

    /// Sends the rows that have waited for the longest time.
    async fn send_oldest(&self, domain: &Domain, path: &str) {
        let rows = {
            let mut rows = self.rows();
            let mut bytes = 0;
            let fits = |row: &&Row| {
                bytes += row.lines.len();
                bytes <= MAX_BYTES
            };
            let count = rows.iter().take_while(fits).count().max(1).min(rows.len());
            let rest = rows.split_off(count);
            mem::replace(&mut *rows, rest)
        };
        let content = rows.iter().map(|row| row.lines.as_str()).collect();
        let results = match domain.send("POST", path.to_owned(), content).await {
            Ok(answer) => results(&answer, rows.len()),
            Err(failure) => vec![Err(failure); rows.len()],
        };
        for (row, result) in rows.into_iter().zip(results) {
            // The write of the row may have been dropped.
            _ = row.sender.send(result);
        }
    }

    fn rows(&self) -> MutexGuard<'_, Vec<Row>> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the result of each row. The status of the request says nothing about them.
fn results(answer: &Value, rows: usize) -> Vec<Result<(), Failure>> {
    let items = answer["items"].as_array().filter(|items| items.len() == rows);
    let Some(items) = items else {
        let why = "the answer has not one item for each row";
        return vec![Err(Failure::Unreachable(why.to_owned())); rows];
    };
    let result = |item: &Value| match item["index"]["status"].as_u64() {
        Some(200..300) => Ok(()),
        status => Err(Failure::Refused {
            status: status.and_then(|status| status.try_into().ok()).unwrap_or_default(),
            kind: item["index"]["error"]["type"].as_str().unwrap_or_default().to_owned(),
        }),
    };
    items.iter().map(result).collect()
}
