//! The operations of functions behind the HTTP API: descriptions of the requests and the answers
//! of routes, for the contract.
//!
//! Only the development binary enables the feature `schema`. Without the feature, a [`Described`]
//! is empty, and a function contains no schemas.

#[cfg(not(feature = "schema"))]
mod none;
#[cfg(feature = "schema")]
mod schema;

#[cfg(not(feature = "schema"))]
pub(crate) use none::Described;
#[cfg(feature = "schema")]
pub(crate) use schema::{Described, RouteKind, print};
