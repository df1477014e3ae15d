//! What the SDK says, in the port's words.

use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
use ledgerline::StoreError;

/// Codes with which DynamoDB asks to slow down, of whole requests and of single items in a transaction.
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

/// The reason in one line. The SDK's own `Display` says only "service error".
pub(crate) fn store_error<E: ProvideErrorMetadata>(error: &SdkError<E>) -> StoreError {
    match error {
        SdkError::ServiceError(service) => {
            let code = service.err().code().unwrap_or("unknown");
            if is_throttling(code) {
                return StoreError::Throttled;
            }
            let message = service.err().message().unwrap_or_default();
            StoreError::Unavailable(format!("{code}: {message}"))
        }
        SdkError::TimeoutError(_) => StoreError::Unavailable("timed out".into()),
        SdkError::DispatchFailure(failure) => StoreError::Unavailable(
            failure.as_connector_error().map_or_else(|| "no connection".into(), ToString::to_string),
        ),
        SdkError::ResponseError(_) => StoreError::Unavailable("the response could not be read".into()),
        SdkError::ConstructionFailure(_) => StoreError::Unavailable("the request could not be built".into()),
        _ => StoreError::Unavailable("unknown failure".into()),
    }
}
