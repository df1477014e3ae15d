//! What one caller may take of an instance, so that it does not take everybody's.
//!
//! An instance counts for itself, without asking anybody. So a caller who sends faster gets more instances for a moment, each of which soon refuses it in
//! a millisecond: one or two are enough for all that it sends. Waiting is dearer, since it holds an instance for seconds: nobody waits for a version that is
//! not in the log, and whoever waited for one that a view did not show in time does not wait again at once.

use std::{
    collections::BTreeMap,
    num::NonZeroU32,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use governor::{DefaultKeyedRateLimiter, Quota};
use tokio::time::Instant;

use crate::{
    Error, config,
    http::{HttpRequest, Problem, TOO_MANY_REQUESTS},
};

/// The variable with the requests that an instance takes of one caller in a second; 0, or none, for any number.
pub(crate) const LIMIT: &str = "CALLER_REQUESTS_PER_SECOND";

/// Callers that are remembered; more of them are forgotten where nothing has to be known of them any more.
const MANY: usize = 10_000;

/// Counts the requests of each caller.
#[derive(Debug)]
pub(crate) struct Limit(DefaultKeyedRateLimiter<String>);

impl Limit {
    /// So many requests in a second, and at once.
    pub(crate) fn new(requests: NonZeroU32) -> Self {
        Self(DefaultKeyedRateLimiter::keyed(Quota::per_second(requests)))
    }

    /// From `CALLER_REQUESTS_PER_SECOND`.
    pub(crate) fn from_env() -> Result<Option<Self>, Error> {
        Ok(NonZeroU32::new(config::parsed_or(LIMIT, 0)?).map(Self::new))
    }

    /// Takes a request of its caller. What names no caller is refused elsewhere.
    ///
    /// # Errors
    /// `429` when the caller sends too many.
    pub(crate) fn take(&self, request: &HttpRequest) -> Result<(), Problem> {
        let Ok(actor) = request.actor() else { return Ok(()) };
        if self.0.len() > MANY {
            self.0.retain_recent();
        }
        self.0.check_key(&actor.to_owned()).map_err(|_| {
            Problem::new(TOO_MANY_REQUESTS, "the caller sends more requests in a second than one may")
        })
    }
}

/// For how long a caller who waited in vain does not wait any more.
const VAIN: Duration = Duration::from_secs(10);

/// Callers who waited for a version that was not shown in time. While a projector does not work, each request of theirs would else hold an instance for
/// three seconds.
#[derive(Debug, Default)]
pub(crate) struct InVain(Mutex<BTreeMap<String, Instant>>);

impl InVain {
    fn callers(&self) -> MutexGuard<'_, BTreeMap<String, Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the caller waited in vain just now.
    pub(crate) fn did(&self, caller: &str) -> bool {
        self.callers().get(caller).is_some_and(|waited| waited.elapsed() < VAIN)
    }

    /// The caller waited in vain.
    pub(crate) fn note(&self, caller: &str) {
        let mut callers = self.callers();
        if callers.len() > MANY {
            callers.retain(|_, waited| waited.elapsed() < VAIN);
        }
        callers.insert(caller.to_owned(), Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use aws_lambda_events::apigw::ApiGatewayV2httpRequest;
    use http::StatusCode;
    use serde_json::json;

    use super::*;

    fn request(caller: &str) -> HttpRequest {
        let event = json!({
            "headers": {}, "isBase64Encoded": false,
            "requestContext": {
                "authorizer": { "jwt": { "claims": { "sub": caller } } }, "http": { "method": "GET" }, "timeEpoch": 0,
            },
        });
        HttpRequest::from(serde_json::from_value::<ApiGatewayV2httpRequest>(event).unwrap())
    }

    #[test]
    fn one_caller_does_not_use_up_what_others_have() {
        let limit = Limit::new(NonZeroU32::new(3).unwrap());
        let (greedy, other) = (request("greedy"), request("other"));
        let taken = (0..10).filter(|_| limit.take(&greedy).is_ok()).count();
        assert!((3..=4).contains(&taken), "{taken}");
        assert_eq!(limit.take(&greedy).unwrap_err().status, StatusCode::TOO_MANY_REQUESTS);
        assert!(limit.take(&other).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn who_waited_in_vain_does_not_wait_again_at_once() {
        let vain = InVain::default();
        assert!(!vain.did("ada"));
        vain.note("ada");
        assert!(vain.did("ada") && !vain.did("bob"));
        tokio::time::sleep(VAIN).await;
        assert!(!vain.did("ada"));
    }
}
