//! The functions of state views, which write states into rows. Each function gets the newest state
//! of each stream in a batch. One asynchronous invocation carries many states, so the fanout does
//! not wait for it. Lambda stores the invocation and makes three attempts. Then it puts the
//! invocation into a queue, from which the function receives it again.

use std::collections::BTreeMap;

use aws_sdk_lambda::{
    Client,
    error::SdkError,
    operation::invoke::InvokeError,
    primitives::Blob,
    types::InvocationType::{DryRun, Event},
};
use ledgerline::Causes;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::fanout::{
    send::{EntryFailure, LastAccepted, chunks, fail_all, fail_call, send_all},
    send_report::SendReport,
};

/// The number of bytes around the states in an invocation.
const BYTES_AROUND: usize = r#"{"states":[]}"#.len();
/// The number of bytes between two states in an invocation.
const BYTES_BETWEEN: usize = ",".len();

/// The codes of invocations that Lambda will never accept.
const PERMANENT: [&str; 2] = ["InvalidRequestContentException", "RequestTooLargeException"];

/// The functions of state views.
#[derive(Debug)]
pub(crate) struct Views {
    pub(crate) client: Client,
    /// The functions by their names.
    pub(crate) functions: BTreeMap<String, View>,
    pub(crate) max_bytes: usize,
}

/// The function of a state view.
#[derive(Debug)]
pub(crate) struct View {
    /// The categories whose states the function gets.
    categories: Vec<String>,
    last_accepted: LastAccepted<State>,
}

impl From<Vec<String>> for View {
    fn from(categories: Vec<String>) -> Self {
        Self { categories, last_accepted: LastAccepted::default() }
    }
}

/// A state to send, with the index of its record.
#[derive(Debug, Clone)]
pub(crate) struct State {
    pub(crate) index: usize,
    pub(crate) category: String,
    /// The state in the form of an entry on the bus, with the last event of its commit.
    pub(crate) detail: Box<RawValue>,
}

/// The payload with which a function of a state view is invoked.
#[derive(Debug, Serialize)]
struct Invocation<'a> {
    states: Vec<&'a RawValue>,
}

impl Views {
    /// Opens the connection with a dry run, which invokes nothing.
    pub(crate) async fn connect(&self) {
        if let Some(function) = self.functions.keys().next() {
            let _ =
                self.client.invoke().function_name(function).invocation_type(DryRun).send().await;
        }
    }

    /// Whether a state with this detail fits into an invocation.
    pub(crate) fn accept(&self, detail: &str) -> bool {
        detail.len() + BYTES_AROUND <= self.max_bytes
    }

    /// Whether a function wants the states of this category.
    pub(crate) fn wants(&self, category: &str) -> bool {
        self.functions.values().flat_map(|view| &view.categories).any(|wanted| wanted == category)
    }

    /// Sends the states to every function that wants their category.
    pub(crate) async fn send(&self, states: &[State]) -> SendReport {
        let functions = futures::future::join_all(self.functions.iter().map(|(function, view)| {
            let wanted = |state: &&State| view.categories.contains(&state.category);
            let wanted = states.iter().filter(wanted).cloned().collect();
            self.send_to(function, &view.last_accepted, wanted)
        }));
        let mut sent = SendReport::default();
        functions.await.into_iter().for_each(|function| sent.merge(function));
        sent
    }

    async fn send_to(
        &self,
        function: &str,
        last_accepted: &LastAccepted<State>,
        states: Vec<State>,
    ) -> SendReport {
        let mut sent = SendReport::default();
        let max_bytes = self.max_bytes.saturating_sub(BYTES_AROUND);
        for call in chunks(&states, max_bytes, |state| state.detail.get().len() + BYTES_BETWEEN) {
            if sent.is_blocked() {
                // An earlier call failed, so Lambda delivers all of these records again. A call for
                // their states would only cost time, because the function accepts nothing.
                call.iter().for_each(|state| sent.failure.note(state.index));
                continue;
            }
            let invoke = async |states: &[State]| self.invoke(function, states).await;
            let unsent = send_all(call, last_accepted, invoke).await;
            let unsent = unsent.into_iter().map(|(state, failure)| (state.index, failure));
            sent.add_unsent(function, unsent);
        }
        sent
    }

    async fn invoke(&self, function: &str, states: &[State]) -> Vec<(usize, EntryFailure)> {
        let invocation = Invocation { states: states.iter().map(|state| &*state.detail).collect() };
        let payload = match serde_json::to_vec(&invocation) {
            Ok(payload) => Blob::new(payload),
            Err(error) => {
                tracing::error!(%error, "an invocation could not be built");
                return fail_all(states.len());
            }
        };
        let call =
            self.client.invoke().function_name(function).invocation_type(Event).payload(payload);
        let Err(error) = call.send().await else { return Vec::new() };
        let reason = throttle_reason(&error);
        tracing::warn!(function, error = %Causes(&error), reason, "the function of a view did not accept an invocation");
        fail_call(states.len(), &error, &PERMANENT)
    }
}

/// The limit that Lambda names when it throttles an invocation, such as
/// `ConcurrentInvocationLimitExceeded` of the account or
/// `ReservedFunctionConcurrentInvocationLimitExceeded` of the function.
pub(crate) fn throttle_reason(error: &SdkError<InvokeError>) -> Option<&str> {
    let InvokeError::TooManyRequestsException(throttled) = error.as_service_error()? else {
        return None;
    };
    throttled.reason().map(|reason| reason.as_str())
}
