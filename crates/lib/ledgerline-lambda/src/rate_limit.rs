//! The limits for one caller of an instance, so that one caller does not exhaust it for the others.
//!
//! Each instance counts for itself, without a call to another service. A caller that sends faster
//! reaches more instances for a moment. Each of them soon refuses the caller within a millisecond,
//! so one or two instances suffice for all its requests. A read that waits costs more, because it
//! holds an instance for seconds. So a read does not wait for a version that is not in the log. And
//! a caller whose wait timed out does not wait again at once.

use std::{
    collections::BTreeMap,
    num::NonZeroU32,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use governor::{DefaultKeyedRateLimiter, Quota};
use tokio::time::Instant;

use crate::{
    config,
    failure::Error,
    http::{
        problem::{Problem, TOO_MANY_REQUESTS},
        request::HttpRequest,
    },
};

/// The variable with the number of requests that an instance accepts from one caller in a second.
/// There is no limit if it is 0 or missing.
pub(crate) const LIMIT_VARIABLE: &str = "CALLER_REQUESTS_PER_SECOND";

/// The number of callers above which an instance deletes expired entries, so that its memory stays
/// bounded (rule 11).
const MAX_CALLERS: usize = 10_000;

/// The limit of requests in a second, with a count for each caller.
#[derive(Debug)]
pub(crate) struct Limit(DefaultKeyedRateLimiter<String>);

impl Limit {
    /// Creates a limit of this many requests in a second. They may all arrive at the same moment.
    pub(crate) fn new(requests: NonZeroU32) -> Self {
        Self(DefaultKeyedRateLimiter::keyed(Quota::per_second(requests)))
    }

    /// Reads the limit from `CALLER_REQUESTS_PER_SECOND`, if there is one.
    pub(crate) fn from_env() -> Result<Option<Self>, Error> {
        Ok(NonZeroU32::new(config::parse_or(LIMIT_VARIABLE, 0)?).map(Self::new))
    }

    /// Counts a request for its caller. A request without a caller passes here, because the route
    /// refuses it with `401`.
    ///
    /// # Errors
    /// `429` when the caller sends too many requests.
    pub(crate) fn check(&self, request: &HttpRequest) -> Result<(), Problem> {
        let Ok(actor) = request.actor() else { return Ok(()) };
        if self.0.len() > MAX_CALLERS {
            self.0.retain_recent();
        }
        self.0.check_key(&actor.to_owned()).map_err(|_| {
            Problem::new(
                TOO_MANY_REQUESTS,
                "the caller sends more requests in a second than one may",
            )
        })
    }
}

/// The time for which a caller does not wait again after a wait that timed out.
const NO_WAIT_TIME: Duration = Duration::from_secs(10);

/// The callers whose wait for a version timed out. Without this record, each of their requests
/// would hold an instance for three seconds while a projector does not work.
#[derive(Debug, Default)]
pub(crate) struct RecentTimeouts(Mutex<BTreeMap<String, Instant>>);

impl RecentTimeouts {
    fn callers(&self) -> MutexGuard<'_, BTreeMap<String, Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a wait of the caller timed out within the last ten seconds.
    pub(crate) fn contains(&self, caller: &str) -> bool {
        self.callers().get(caller).is_some_and(|waited| waited.elapsed() < NO_WAIT_TIME)
    }

    /// Records that a wait of the caller timed out.
    pub(crate) fn add(&self, caller: &str) {
        let mut callers = self.callers();
        if callers.len() > MAX_CALLERS {
            callers.retain(|_, waited| waited.elapsed() < NO_WAIT_TIME);
        }
        callers.insert(caller.to_owned(), Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use aws_lambda_events::apigw::ApiGatewayV2httpRequest;
    use http::StatusCode;
    use ledgerline_testing::http_event;
    use serde_json::json;

    use super::*;

    fn request(caller: &str) -> HttpRequest {
        let claims = json!({ "sub": caller });
        let fields = json!({ "requestContext": { "authorizer": { "jwt": { "claims": claims } } } });
        HttpRequest::from(http_event::<ApiGatewayV2httpRequest>("GET /tanks", fields))
    }

    #[test]
    fn one_callers_requests_do_not_use_up_the_limit_of_others() {
        let limit = Limit::new(NonZeroU32::new(3).unwrap());
        let greedy = request("greedy");
        let other = request("other");
        let began = std::time::Instant::now();
        let answers: Vec<_> = (0..1_000).map(|_| limit.check(&greedy)).collect();
        let taken = answers.iter().filter(|answer| answer.is_ok()).count();
        let refilled = usize::try_from(began.elapsed().as_millis() * 3 / 1_000).unwrap();
        // The limit allows three requests at once. A slow machine gets one more for each third of a
        // second that this loop runs.
        assert!((3..=4 + refilled).contains(&taken), "{taken}");
        let refused = answers.into_iter().find_map(Result::err).unwrap();
        assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
        assert!(limit.check(&other).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_whose_wait_timed_out_does_not_wait_again_at_once() {
        let timeouts = RecentTimeouts::default();
        assert!(!timeouts.contains("ada"));
        timeouts.add("ada");
        assert!(timeouts.contains("ada") && !timeouts.contains("bob"));
        tokio::time::sleep(NO_WAIT_TIME).await;
        assert!(!timeouts.contains("ada"));
    }
}
