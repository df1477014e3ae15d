//! The meaning of the error codes of an AWS SDK, in one place. Only the failed condition of a write
//! is recognised in the module that writes.

use std::{error::Error, fmt::Debug};

use aws_sdk_dynamodb::{
    error::{ProvideErrorMetadata, SdkError},
    types::{
        CancellationReason, ThrottlingReason,
        error::{
            ProvisionedThroughputExceededException, RequestLimitExceeded, ThrottlingException,
        },
    },
};
use ledgerline::{StoreError, view_store::ViewError};

/// The meaning of a failed call for the caller.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The service throttles the request. The value is its reason and the throttled resource.
    Throttled(String),
    /// Another writer is busy with the same items.
    Busy,
    /// The service refuses the request, and a retry would fail too. The value is its message.
    Invalid(String),
    /// The service could not be reached, did not answer in time or failed: the call may have
    /// succeeded.
    Unavailable(Box<dyn Error + Send + Sync>),
}

/// Whether a code means throttling. It is the code of a whole request, or of one item in a
/// transaction.
pub(crate) fn is_throttling(code: &str) -> bool {
    matches!(
        code,
        "ProvisionedThroughputExceededException"
            | "ProvisionedThroughputExceeded"
            | "ThrottlingException"
            | "ThrottlingError"
            | "RequestLimitExceeded"
    )
}

/// Whether a code means that another writer is busy. It is the code of a whole request, or of one
/// item in a transaction.
pub(crate) fn is_busy(code: &str) -> bool {
    matches!(
        code,
        "TransactionConflict" | "TransactionConflictException" | "TransactionInProgressException"
    )
}

/// Returns the meaning of an error. If the service is unavailable, the error is kept as the cause.
pub(crate) fn failure<E, R>(error: SdkError<E, R>) -> Failure
where
    E: ProvideErrorMetadata + Error + Send + Sync + 'static,
    R: Debug + Send + Sync + 'static,
{
    match error.code() {
        Some(code) if is_throttling(code) => {
            Failure::Throttled(throttling_cause(code, error.message(), &error))
        }
        Some(code) if is_busy(code) => Failure::Busy,
        Some(code @ "ValidationException") => {
            Failure::Invalid(error.message().unwrap_or(code).to_owned())
        }
        Some(_) | None => Failure::Unavailable(Box::new(error)),
    }
}

/// Returns the cause of throttling: the code, and for each reason the exceeded limit and the
/// resource, such as `TableWriteKeyRangeThroughputExceeded on arn:aws:dynamodb:…:table/orders`.
/// Without reasons, it has the message instead.
///
/// Source: the developer guide of DynamoDB, "Understanding and handling throttling".
fn throttling_cause(code: &str, message: Option<&str>, error: &(dyn Error + 'static)) -> String {
    fn reasons<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e [ThrottlingReason]> {
        let throttling = error.downcast_ref().map(ThrottlingException::throttling_reasons);
        let provisioned =
            || error.downcast_ref().map(ProvisionedThroughputExceededException::throttling_reasons);
        let requests = || error.downcast_ref().map(RequestLimitExceeded::throttling_reasons);
        throttling.or_else(provisioned).or_else(requests)
    }
    let mut reasons_of = reasons(error);
    let mut cause = error.source();
    while let (None, Some(error)) = (reasons_of, cause) {
        reasons_of = reasons(error);
        cause = error.source();
    }
    let reasons = reasons_of.unwrap_or_default();
    let named = reasons.iter().map(|reason| match (reason.reason(), reason.resource()) {
        (Some(reason), Some(resource)) => format!("{reason} on {resource}"),
        (one, other) => one.or(other).unwrap_or_default().to_owned(),
    });
    let named: Vec<_> = named.filter(|reason| !reason.is_empty()).collect();
    match named.is_empty() {
        false => format!("{code}: {}", named.join(", ")),
        true => with_message(code, message),
    }
}

/// Returns the reason why a transaction was cancelled. The reason names no resource: its place in
/// the list is that of the item.
pub(crate) fn cancellation(reason: &CancellationReason) -> String {
    with_message(reason.code().unwrap_or_default(), reason.message())
}

fn with_message(code: &str, message: Option<&str>) -> String {
    message.map_or_else(|| code.to_owned(), |message| format!("{code}: {message}"))
}

/// Converts the failure of a call into an error of the event store.
pub(crate) fn store_error<E, R>(error: SdkError<E, R>) -> StoreError
where
    E: ProvideErrorMetadata + Error + Send + Sync + 'static,
    R: Debug + Send + Sync + 'static,
{
    to_store_error(failure(error))
}

pub(crate) fn to_store_error(failure: Failure) -> StoreError {
    match failure {
        Failure::Throttled(cause) => StoreError::Throttled(cause),
        Failure::Busy => {
            StoreError::Unavailable("another transaction is busy with the same items".into())
        }
        Failure::Invalid(message) => StoreError::Unavailable(message.into()),
        Failure::Unavailable(source) => StoreError::Unavailable(source),
    }
}

/// Converts the failure of a call into an error of a read table.
pub(crate) fn table_error<E, R>(error: SdkError<E, R>) -> ViewError
where
    E: ProvideErrorMetadata + Error + Send + Sync + 'static,
    R: Debug + Send + Sync + 'static,
{
    to_table_error(failure(error))
}

pub(crate) fn to_table_error(failure: Failure) -> ViewError {
    match failure {
        Failure::Throttled(cause) => ViewError::Throttled(cause),
        Failure::Busy => {
            ViewError::Throttled("another transaction is busy with the same items".into())
        }
        // It is not `Unavailable`, because clients would then retry.
        Failure::Invalid(message) => ViewError::Row(message),
        Failure::Unavailable(source) => ViewError::Unavailable(source),
    }
}

/// Returns the error text for an item that cannot be read, without the item's values (rule 14). The
/// messages of serde and of the fields' types quote values in many forms. Only the message about a
/// missing field quotes none, so only the name of that field is kept.
pub(crate) fn without_values(error: &serde_dynamo::Error) -> String {
    let message = error.to_string();
    let missing = message.strip_prefix("missing field `").and_then(|rest| rest.split_once('`'));
    match missing {
        Some((field, _)) => format!("missing field `{field}`"),
        None => "a field has another type or range than this program reads".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use aws_sdk_dynamodb::{error::ErrorMetadata, operation::put_item::PutItemError};
    use ledgerline::Causes;

    use super::*;

    fn service_error(code: &str) -> SdkError<PutItemError, ()> {
        let error =
            PutItemError::generic(ErrorMetadata::builder().code(code).message("words").build());
        SdkError::service_error(error, ())
    }

    #[test]
    fn a_code_means_the_same_to_the_store_and_to_the_tables() {
        for code in [
            "ThrottlingException",
            "ProvisionedThroughputExceededException",
            "RequestLimitExceeded",
        ] {
            assert!(matches!(store_error(service_error(code)), StoreError::Throttled(_)), "{code}");
            assert!(matches!(table_error(service_error(code)), ViewError::Throttled(_)), "{code}");
        }
        assert!(matches!(
            table_error(service_error("TransactionInProgressException")),
            ViewError::Throttled(_)
        ));
        assert!(
            matches!(table_error(service_error("ValidationException")), ViewError::Row(words) if words == "words")
        );
    }

    #[test]
    fn throttling_names_the_reason_and_the_resource_of_the_database() {
        let reason = |reason: &str, resource: &str| {
            ThrottlingReason::builder().reason(reason).resource(resource).build()
        };
        let table = "arn:aws:dynamodb:eu-west-1:1:table/orders";
        let throttled = ThrottlingException::builder()
            .meta(ErrorMetadata::builder().code("ThrottlingException").message("words").build())
            .throttling_reasons(reason("TableWriteKeyRangeThroughputExceeded", table))
            .throttling_reasons(reason(
                "IndexWriteMaxOnDemandThroughputExceeded",
                &format!("{table}/index/i"),
            ))
            .build();
        let throttled =
            SdkError::<_, ()>::service_error(PutItemError::ThrottlingException(throttled), ());
        assert_eq!(
            store_error(throttled).to_string(),
            "the store is throttled: ThrottlingException: TableWriteKeyRangeThroughputExceeded on \
             arn:aws:dynamodb:eu-west-1:1:table/orders, IndexWriteMaxOnDemandThroughputExceeded on \
             arn:aws:dynamodb:eu-west-1:1:table/orders/index/i"
        );
        let bare = table_error(service_error("RequestLimitExceeded")).to_string();
        assert_eq!(bare, "the store of the view is throttled: RequestLimitExceeded: words");
    }

    #[test]
    fn an_unavailable_service_keeps_its_cause() {
        for error in [
            Causes(&store_error(service_error("InternalServerError"))).to_string(),
            Causes(&table_error(service_error("InternalServerError"))).to_string(),
            Causes(&store_error::<PutItemError, ()>(SdkError::timeout_error("after 4 s")))
                .to_string(),
        ] {
            assert!(error.contains("unavailable: "), "{error}");
            assert!(
                error.contains("InternalServerError") || error.contains("after 4 s"),
                "{error}"
            );
        }
    }

    #[test]
    fn an_item_that_cannot_be_read_is_reported_without_its_values() {
        #[derive(Debug, serde::Deserialize)]
        #[serde(rename_all = "camelCase")]
        enum Kind {
            Known,
        }
        #[derive(Debug, serde::Deserialize)]
        struct Row {
            #[serde(default)]
            _kind: Option<Kind>,
            #[serde(default)]
            _at: Option<jiff::Timestamp>,
            _amount: i64,
        }
        let text = |text: &str| aws_sdk_dynamodb::types::AttributeValue::S(text.into());
        let words = |field: &str, value| {
            let item = std::collections::HashMap::from([(field.to_owned(), value)]);
            without_values(&serde_dynamo::from_item::<_, Row>(item).unwrap_err())
        };
        for field in ["_kind", "_at", "_amount"] {
            let words = words(field, text("secret"));
            assert!(
                !words.contains("secret") && words.contains("another type or range"),
                "{field}: {words}"
            );
        }
        assert_eq!(words("_else", text("secret")), "missing field `_amount`");
    }
}
