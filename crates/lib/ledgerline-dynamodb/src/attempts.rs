//! Counts of attempts at work that crashes its process. They are in the Requests table and expire
//! like requests.

use aws_sdk_dynamodb::types::{AttributeValue, ReturnConsumedCapacity, ReturnValue};
use ledgerline::StoreError;

use crate::{DynamoDbStore, error, item};

/// The attribute with the ids of the attempts. A number would count a repeated call twice.
const BEGUN: &str = "begun";

impl DynamoDbStore {
    /// Records the beginning of an attempt, and returns how many earlier attempts began without an
    /// end. `id` is the id of this attempt: a call that is repeated, because its answer was lost,
    /// counts once. The database deletes the record after `expires`, in Unix seconds.
    ///
    /// `what` has no spaces and does not begin with the name of a stream, because it must not be
    /// the key of a request. A client's key has a space before the caller, and a process manager's
    /// key begins with a stream.
    pub async fn record_attempt(
        &self,
        what: &str,
        id: &str,
        expires: i64,
    ) -> Result<u64, StoreError> {
        let output = self
            .client
            .update_item()
            .table_name(self.requests()?)
            .key(item::REQUEST, AttributeValue::S(what.to_owned()))
            .update_expression("ADD #begun :id SET #expires = :expires")
            .expression_attribute_names("#begun", BEGUN)
            .expression_attribute_names("#expires", item::EXPIRES)
            .expression_attribute_values(":id", AttributeValue::Ss(vec![id.to_owned()]))
            .expression_attribute_values(":expires", AttributeValue::N(expires.to_string()))
            .return_values(ReturnValue::UpdatedNew)
            .return_consumed_capacity(ReturnConsumedCapacity::Total)
            .send()
            .await
            .map_err(error::store_error)?;
        let begun = output.attributes.as_ref().and_then(|item| item.get(BEGUN)?.as_ss().ok());
        Ok(begun.map_or(0, |begun| begun.iter().filter(|other| *other != id).count() as u64))
    }

    /// Deletes the record, because the work has ended, with success or without.
    pub async fn clear_attempts(&self, what: &str) -> Result<(), StoreError> {
        let key = AttributeValue::S(what.to_owned());
        let delete = self.client.delete_item().table_name(self.requests()?).key(item::REQUEST, key);
        let deleted = delete.return_consumed_capacity(ReturnConsumedCapacity::Total).send().await;
        deleted.map(|_| ()).map_err(error::store_error)
    }
}
