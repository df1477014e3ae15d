//! The description of a route in a shipped function: an empty type.

#![expect(clippy::extra_unused_type_parameters, reason = "a description with schemas uses them")]

use ledgerline::{Refusal, api::Occurs};
use schemars::{JsonSchema, Schema, SchemaGenerator};

/// An empty description, because a shipped function contains no schemas.
#[derive(Debug, Clone, Default)]
pub(crate) struct Described(());

impl Described {
    pub(crate) fn summary(self, _: &'static str) -> Self {
        self
    }

    pub(crate) fn body<T: JsonSchema>(self) -> Self {
        self
    }

    pub(crate) fn body_limit(self, _: usize) -> Self {
        self
    }

    pub(crate) fn answer<T: JsonSchema>(self) -> Self {
        self
    }

    pub(crate) fn answer_by(
        self,
        _: impl Fn(&mut SchemaGenerator) -> Schema + Send + Sync + 'static,
    ) -> Self {
        self
    }

    pub(crate) fn path<T: JsonSchema>(self, _: &'static str) -> Self {
        self
    }

    pub(crate) fn query<T: JsonSchema>(self, _: &'static str, _: Occurs) -> Self {
        self
    }

    pub(crate) fn refusals(self, _: &[Refusal]) -> Self {
        self
    }
}
