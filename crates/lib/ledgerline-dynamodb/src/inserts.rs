//! The writes of commits and requests: PartiQL `INSERT` alone or in a transaction, and the meaning of
//! their errors.

use aws_sdk_dynamodb::{
    error::{ProvideErrorMetadata, SdkError},
    operation::execute_transaction::ExecuteTransactionError,
    types::{AttributeValue, CancellationReason, ParameterizedStatement, ReturnConsumedCapacity},
};
use ledgerline::{AppendError, IdempotencyRecord, StoreError};

use crate::{DynamoDbStore, error, item};

impl DynamoDbStore {
    /// Returns the statement that writes a commit or an answer. PartiQL INSERT is the only way in
    /// which they are written. A role that allows `PutItem` allows overwriting too, whatever
    /// condition the code sends (rule 3).
    fn statement(table: &str, item: item::Fields) -> (String, Vec<AttributeValue>) {
        let (names, values): (Vec<_>, Vec<_>) = item.into_iter().unzip();
        let fields: Vec<_> = names.iter().map(|name| format!("'{name}': ?")).collect();
        (format!("INSERT INTO \"{table}\" VALUE {{{}}}", fields.join(", ")), values)
    }

    /// Writes one item. If an item with its key exists, the error is `taken`.
    pub(crate) async fn insert(
        &self,
        table: &str,
        item: item::Fields,
        taken: AppendError,
    ) -> Result<(), AppendError> {
        let (statement, parameters) = Self::statement(table, item);
        let result = self
            .client
            .execute_statement()
            .statement(statement)
            .set_parameters(Some(parameters))
            .return_consumed_capacity(ReturnConsumedCapacity::Total)
            .send()
            .await;
        match result {
            Ok(_) => Ok(()),
            Err(error) => Err(match error.as_service_error() {
                Some(service) if service.is_duplicate_item_exception() => taken,
                Some(_) | None => append_error(error),
            }),
        }
    }

    /// Writes the commits, and the request if there is one, in one transaction.
    pub(crate) async fn transact(
        &self,
        commits: &[item::Fields],
        request: Option<&IdempotencyRecord>,
    ) -> Result<(), AppendError> {
        let statement = |(statement, parameters)| {
            ParameterizedStatement::builder()
                .statement(statement)
                .set_parameters(Some(parameters))
                .build()
                .map_err(|error| StoreError::Unavailable(error.into()))
        };
        let mut statements = Vec::new();
        for commit in commits {
            statements.push(statement(Self::statement(&self.commits, commit.clone()))?);
        }
        if let Some(request) = request {
            statements.push(statement(Self::statement(
                self.requests()?,
                item::request_to_item(request),
            ))?);
        }
        let result = self
            .client
            .execute_transaction()
            .set_transact_statements(Some(statements))
            .return_consumed_capacity(ReturnConsumedCapacity::Total)
            .send()
            .await;
        result.map(|_| ()).map_err(|error| transaction_error(error, commits.len()))
    }
}

/// Returns the reason why a transaction was not written. The reasons are in the order of the
/// statements: first those of the commits, then that of the request. The request may be stored
/// already, with or without the commits.
fn transaction_error(error: SdkError<ExecuteTransactionError>, commits: usize) -> AppendError {
    let reasons = match error.as_service_error() {
        Some(ExecuteTransactionError::TransactionCanceledException(cancelled)) => {
            cancelled.cancellation_reasons()
        }
        Some(_) | None => &[],
    };
    let has = |reason: &CancellationReason, is: fn(&str) -> bool| reason.code().is_some_and(is);
    let taken = |code: &str| matches!(code, "DuplicateItem" | "ConditionalCheckFailed");
    if reasons.get(commits).is_some_and(|request| has(request, taken)) {
        return AppendError::RequestTaken;
    }
    if reasons.iter().any(|commit| has(commit, taken)) {
        return AppendError::VersionTaken;
    }
    if reasons.iter().any(|reason| has(reason, error::is_busy)) {
        return AppendError::Busy;
    }
    match reasons.iter().find(|reason| has(reason, error::is_throttling)) {
        Some(throttled) => StoreError::Throttled(error::cancellation(throttled)).into(),
        None => append_error(error),
    }
}

/// Converts the failure of a write into an error of the event store.
fn append_error<E>(error: SdkError<E>) -> AppendError
where
    E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
{
    match error::failure(error) {
        error::Failure::Busy => AppendError::Busy,
        error::Failure::Throttled(cause) => StoreError::Throttled(cause).into(),
        error::Failure::Invalid(message) => StoreError::Unavailable(message.into()).into(),
        error::Failure::Unavailable(source) => StoreError::Unavailable(source).into(),
    }
}
