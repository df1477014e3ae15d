//! Outages on request: for a while, the requests of functions to a table, a queue or the bus fail.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use serde::Deserialize;

/// The resources that fail, each with the end of its outage.
#[derive(Debug, Default)]
pub(crate) struct Outages(Mutex<Vec<(String, Instant)>>);

/// The request for an outage.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Outage {
    /// The end of the resource's ARN: that of a table (not of its indexes) or a queue, `events` for the bus, or the sender's address for mails.
    pub(crate) of: String,
    /// The length of the outage.
    pub(crate) seconds: u32,
}

impl Outages {
    /// Makes the resource fail from now on.
    pub(crate) fn begin(&self, outage: Outage) {
        let now = Instant::now();
        let mut under_way = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        under_way.retain(|(_, until)| *until > now);
        under_way.push((outage.of, now + Duration::from_secs(outage.seconds.into())));
    }

    /// Whether the resource has an outage now.
    pub(crate) fn has(&self, resource: &str) -> bool {
        // An index fails with its table.
        let resource = resource.split_once("/index/").map_or(resource, |(table, _)| table);
        let under_way = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        under_way.iter().any(|(of, until)| resource.ends_with(of.as_str()) && *until > Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_of_what_it_names_and_ends() {
        let outages = Outages::default();
        let table = "arn:aws:dynamodb:us-east-1:000000000000:table/ledgerline-BalancesTable";
        assert!(!outages.has(table));
        outages.begin(Outage { of: "BalancesTable".into(), seconds: 0 });
        assert!(!outages.has(table));
        outages.begin(Outage { of: "BalancesTable".into(), seconds: 60 });
        assert!(outages.has(table) && outages.has(&format!("{table}/index/ofOpener")));
        assert!(!outages.has("arn:aws:sqs:us-east-1:000000000000:Transactions.fifo"));
    }
}
