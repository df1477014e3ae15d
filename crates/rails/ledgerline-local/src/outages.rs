//! Outages that somebody asks for: for a while, a service fails at whatever functions do with a table, a queue or a bus.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use serde::Deserialize;

/// What fails, and until when.
#[derive(Debug, Default)]
pub(crate) struct Outages(Mutex<Vec<(String, Instant)>>);

/// What is asked for.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Outage {
    /// How the resource's name ends: that of a table or queue, `SendEmail` of the mails, or `events` of the bus.
    pub(crate) of: String,
    /// For how long.
    pub(crate) seconds: u32,
}

impl Outages {
    /// Lets it fail from now on.
    pub(crate) fn begin(&self, outage: Outage) {
        let now = Instant::now();
        let mut under_way = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        under_way.retain(|(_, until)| *until > now);
        under_way.push((outage.of, now + Duration::from_secs(outage.seconds.into())));
    }

    /// Whether the resource is out.
    pub(crate) fn has(&self, resource: &str) -> bool {
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
        assert!(outages.has(table) && !outages.has("arn:aws:sqs:us-east-1:000000000000:Transactions.fifo"));
    }
}
