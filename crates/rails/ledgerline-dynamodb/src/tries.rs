//! How often something was begun that nobody saw the end of. It stands beside the requests and expires like them.

use aws_sdk_dynamodb::types::{AttributeValue, ReturnConsumedCapacity, ReturnValue};
use ledgerline::StoreError;

use crate::{DynamoDbStore, error, item};

/// A set of ids. Before, a number was counted in `tries`, to which a call that was sent again added twice.
const BEGUN: &str = "begun";

impl DynamoDbStore {
    /// Notes that something begins, and tells how often it began before without an end. `id` is that of this beginning: a call that is sent
    /// again, because its answer was lost, counts once. The note is forgotten in the second `expires`, counted from 1970.
    ///
    /// `what` has no spaces and is not the name of a stream: the keys of clients' requests have a space before the caller, those of
    /// process managers begin with a stream.
    ///
    /// # Errors
    /// When the Requests table cannot be written.
    pub async fn begins(&self, what: &str, id: &str, expires: i64) -> Result<u64, StoreError> {
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

    /// Notes that it came to an end, whichever.
    ///
    /// # Errors
    /// When the Requests table cannot be written.
    pub async fn ended(&self, what: &str) -> Result<(), StoreError> {
        let key = AttributeValue::S(what.to_owned());
        let delete = self.client.delete_item().table_name(self.requests()?).key(item::REQUEST, key);
        let deleted = delete.return_consumed_capacity(ReturnConsumedCapacity::Total).send().await;
        deleted.map(|_| ()).map_err(error::store_error)
    }
}
