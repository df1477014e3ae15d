//! Event filters: the pattern language of EventBridge, as stream mappings use it.

use anyhow::{Result, anyhow};
use rustack_events_core::pattern::{EventPattern, matches, parse_event_pattern};
use serde_json::Value;

use ledgerline_sam::template::FilterCriteria;

/// The patterns of a mapping. Without patterns, every record passes. Otherwise, a record must match
/// one of them.
#[derive(Debug)]
pub(crate) struct Filters(Vec<EventPattern>);

impl Filters {
    pub(crate) fn parse(criteria: &FilterCriteria) -> Result<Self> {
        let patterns = criteria.filters.iter().map(|filter| {
            parse_event_pattern(&filter.pattern)
                .map_err(|error| anyhow!("the pattern {} is not valid: {error}", filter.pattern))
        });
        Ok(Self(patterns.collect::<Result<_>>()?))
    }

    pub(crate) fn pass(&self, record: &Value) -> bool {
        self.0.is_empty() || self.0.iter().any(|pattern| matches(pattern, record))
    }
}
