//! Outages on request: for a while, the requests of functions to a table, a queue, a bucket, the bus
//! or a function fail, or are throttled.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use serde::Deserialize;

/// The outages, each with its end.
#[derive(Debug, Default)]
pub(crate) struct Outages(Mutex<Vec<(Outage, Instant)>>);

/// The request for an outage.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Outage {
    /// The end of the resource's ARN: that of a table (not of its indexes), a queue, a bucket or a
    /// function (without an alias). For the bus, it is `events`; for mails, the sender's address.
    pub(crate) of: String,
    /// The length of the outage.
    pub(crate) seconds: u32,
    /// The answer to requests.
    #[serde(default)]
    pub(crate) answer: Failing,
}

/// The answer of a resource that has an outage.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Failing {
    /// An internal error.
    #[default]
    Failed,
    /// A throttled request.
    Throttled,
}

impl Outages {
    /// Makes the resource fail until the end of the outage. It replaces an earlier outage of the
    /// same resource.
    pub(crate) fn begin(&self, outage: Outage) {
        let now = Instant::now();
        let mut under_way = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        under_way.retain(|(earlier, until)| *until > now && earlier.of != outage.of);
        let until = now + Duration::from_secs(outage.seconds.into());
        under_way.push((outage, until));
    }

    /// Returns the answer of the resource during an outage; `None` without an outage.
    pub(crate) fn failure(&self, resource: &str) -> Option<Failing> {
        // An index fails with its table.
        let resource = resource.split_once("/index/").map_or(resource, |(table, _)| table);
        // A caller names a function with an alias or without one.
        let without_alias = match resource.split_once(":function:") {
            Some((_, function)) => function.split(':').next().unwrap_or(function),
            None => resource,
        };
        let under_way = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // The name of a bucket has lowercase letters.
        let ends = |text: &str, of: &str| text.to_lowercase().ends_with(&of.to_lowercase());
        let is_of_it = |of: &str| ends(resource, of) || ends(without_alias, of);
        let now = Instant::now();
        let mut of_it =
            under_way.iter().filter(|(outage, until)| is_of_it(&outage.of) && *until > now);
        of_it.next().map(|(outage, _)| outage.answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_fails_the_named_resource_until_its_end() {
        let outages = Outages::default();
        let begin =
            |seconds, answer| outages.begin(Outage { of: "BalancesTable".into(), seconds, answer });
        let table = "arn:aws:dynamodb:us-east-1:000000000000:table/ledgerline-BalancesTable";
        assert_eq!(outages.failure(table), None);
        begin(0, Failing::Failed);
        assert_eq!(outages.failure(table), None);
        begin(60, Failing::Throttled);
        let index = format!("{table}/index/ofOpener");
        assert_eq!(
            [table, &index].map(|resource| outages.failure(resource)),
            [Some(Failing::Throttled); 2]
        );
        outages.begin(Outage { of: "MailFunction".into(), seconds: 60, answer: Failing::Failed });
        let function = "arn:aws:lambda:us-east-1:000000000000:function:ledgerline-MailFunction";
        let alias = format!("{function}:live");
        assert_eq!(
            [function, &alias].map(|resource| outages.failure(resource)),
            [Some(Failing::Failed); 2]
        );
        outages.begin(Outage { of: ":live".into(), seconds: 60, answer: Failing::Throttled });
        let other = function.replace("Mail", "Other");
        assert_eq!(outages.failure(&other), None);
        assert_eq!(outages.failure(&format!("{other}:live")), Some(Failing::Throttled));
        assert_eq!(outages.failure("arn:aws:sqs:us-east-1:000000000000:Transactions.fifo"), None);
    }

    #[test]
    fn an_outage_fails_unless_it_throttles() {
        let answer = |request: &str| serde_json::from_str::<Outage>(request).unwrap().answer;
        assert_eq!(answer(r#"{"of":"T","seconds":1}"#), Failing::Failed);
        assert_eq!(answer(r#"{"of":"T","seconds":1,"answer":"throttled"}"#), Failing::Throttled);
    }
}
