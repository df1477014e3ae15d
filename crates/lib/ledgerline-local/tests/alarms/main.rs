//! Each alarm of the template rings at its fault, and none rings without one. The tests act faults
//! out on local stacks, and evaluate the formulas of the alarms on the output of the stacks.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod faults;
mod formula;
mod observed;

use std::collections::BTreeSet;

use jiff::SignedDuration;
use ledgerline_testing::{LocalStack, eventually};

use crate::{
    faults::{Fault, traffic},
    observed::{Observed, Template, path},
};

/// A fault, the minutes after which its alarms see it if nothing repairs it, and its alarms. Only
/// alarms on ages need the minutes.
type Row = (Fault, i64, &'static [&'static str]);

/// The faults of the first stack. In this order, no fault makes the alarm of a later fault ring.
const STATES: [Row; 10] = [
    (Fault::FanoutKilled, 0, &["FanoutErrors", "FunctionErrors"]),
    (Fault::RowLost, 0, &["Unreconciled"]),
    (Fault::HaulStuck, 0, &["StuckHauls"]),
    (Fault::PoisonPill, 0, &["FanoutDeadLetterQueueNotEmpty"]),
    (Fault::StatesWait, 0, &["LevelsRetryQueueNotEmpty"]),
    (Fault::RequestsFail, 0, &["ApiFailures"]),
    (Fault::StatesGivenUp, 0, &["LevelsDeadLetterQueueNotEmpty"]),
    (Fault::RetryQueueGone, 0, &["LevelsProjectorUndelivered"]),
    (Fault::FanoutBucketGone, 0, &["FanoutUndelivered"]),
    (Fault::CommitsChanged, 0, &["ChangedCommits"]),
];

/// The faults of the second stack, in an order of the same kind.
const COMMITS: [Row; 6] = [
    (Fault::CallerThrottled, 0, &["ManyRequestsRefused"]),
    (Fault::CommitsWait, 6, &["FillsQueueAge", "HaulQueueAge", "ReadingsQueueAge"]),
    (
        Fault::CommitsGivenUp,
        0,
        &[
            "FillsDeadLetterQueueNotEmpty",
            "HaulDeadLetterQueueNotEmpty",
            "ReadingsDeadLetterQueueNotEmpty",
        ],
    ),
    (Fault::SequencerDown, 6, &["SequencerIteratorAge", "StockBehind"]),
    (Fault::FunctionThrottled, 2, &["FanoutIteratorAge", "FunctionThrottles"]),
    (Fault::LogThrottled, 0, &["CommitsThrottled"]),
];

/// The alarm without a fault: it compares running functions with a quota of the account, and the
/// local stack is in no account.
const NOT_ACTED_OUT: &str = "AccountConcurrency";

/// Changes of the template after which an alarm does not ring at its fault: the alarm, the text
/// that the template has, and the text of the changed copy.
const BROKEN: [(&str, &str, &str); 3] = [
    // The dimension of another function.
    (
        "StuckHauls",
        "Dimensions: [{ Name: Function, Value: !Ref HaulFunction }]",
        "Dimensions: [{ Name: Function, Value: !Ref HaulCommandsFunction }]",
    ),
    // A pattern that finds no crash.
    ("FunctionErrors", r#"$.record.status != "success" }'"#, r#"$.record.status = "timeout" }'"#),
    // A threshold that a single state does not reach.
    (
        "LevelsRetryQueueNotEmpty",
        "EvaluationPeriods: 6\n      Threshold: 0",
        "EvaluationPeriods: 6\n      Threshold: 9",
    ),
];

#[test]
fn every_alarm_of_the_template_has_one_fault_or_a_reason() {
    let rows = STATES.iter().chain(&COMMITS);
    let mut known: Vec<_> = rows.flat_map(|(_, _, alarms)| *alarms).copied().collect();
    known.push(NOT_ACTED_OUT);
    known.sort_unstable();
    assert!(known.into_iter().eq(Template::read("", "").alarms()));
}

#[tokio::test]
async fn no_alarm_rings_on_a_healthy_stack_and_faults_of_states_ring_theirs() {
    // In this copy of the template, the fanout gives up a record after one retry, and not after
    // twelve hours: the test kills the fanout once. The copy also allows changes of commits.
    let folder = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(path()).unwrap();
    let text = text.replace("MaximumRetryAttempts: 10000", "MaximumRetryAttempts: 1");
    let text =
        ["CommitsAreNeverChanged", "CommitsAreArchivedByOneRole"].iter().fold(text, |text, sid| {
            let denial = format!("Sid: {sid}\n              Effect: ");
            assert!(text.contains(&format!("{denial}Deny")));
            text.replace(&format!("{denial}Deny"), &format!("{denial}Allow"))
        });
    let copy = folder.path().join("template.yaml");
    std::fs::write(&copy, text).unwrap();
    let config = "samconfig.toml";
    std::fs::copy(path().with_file_name(config), folder.path().join(config)).unwrap();
    let stack = LocalStack::start_as(&["--template", copy.to_str().unwrap()]).await;

    traffic(&stack).await;
    let template = Template::read("", "");
    let healthy = Observed { stack: &stack, age: SignedDuration::ZERO };
    assert_eq!(healthy.ringing(&template).await, BTreeSet::new());
    // Commits that wait for anything would be too old after ten minutes.
    let later = Observed { age: SignedDuration::from_mins(10), ..healthy };
    eventually("nothing waits", async || later.ringing(&template).await.is_empty().then_some(()))
        .await;

    act_out(&stack, &STATES).await;
}

#[tokio::test]
async fn faults_of_commits_and_requests_ring_their_alarms() {
    let stack =
        LocalStack::start_as(&["--parameter-overrides", "CallerRequestsPerSecond=20"]).await;
    act_out(&stack, &COMMITS).await;
}

/// Acts the faults out one after the other. The alarms of each fault ring after the fault, and not
/// before it.
async fn act_out(stack: &LocalStack, rows: &[Row]) {
    let template = Template::read("", "");
    for (fault, minutes, alarms) in rows {
        let observed = Observed { stack, age: SignedDuration::from_mins(*minutes) };
        for alarm in *alarms {
            eventually(&format!("{alarm} is quiet before {fault:?}"), async || {
                (!observed.rings(&template, alarm).await).then_some(())
            })
            .await;
        }
        fault.act(stack).await;
        for alarm in *alarms {
            let rings = async || observed.rings(&template, alarm).await.then_some(());
            eventually(&format!("{alarm} rings after {fault:?}"), rings).await;
            // A limit that is too low would ring at every delay.
            if alarm.ends_with("Age") {
                let young = observed.age / 3 - SignedDuration::from_secs(40);
                let young = Observed { stack, age: young };
                assert!(!young.rings(&template, alarm).await, "{alarm} rings at {:?}", young.age);
            }
            for (_, from, to) in BROKEN.iter().filter(|(broken, ..)| broken == alarm) {
                let broken = Template::read(from, to);
                assert!(!observed.rings(&broken, alarm).await, "{alarm} rings with {to}");
            }
        }
    }
}
