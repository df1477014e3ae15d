//! Each alarm of the template rings at its fault, and none rings without one. The tests act faults
//! out on local stacks, and evaluate the formulas of the alarms on the output of the stacks.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod faults;
mod formula;
mod observed;
mod template;

use std::collections::BTreeSet;

use jiff::SignedDuration;
use ledgerline_testing::{LocalStack, eventually};

use crate::{
    faults::{Fault, traffic},
    observed::Observed,
    template::Template,
};

/// The fault at which each alarm rings.
const TABLE: [(&str, Fault); 22] = [
    ("ApiFailures", Fault::RequestsFail),
    ("CommitsThrottled", Fault::LogThrottled),
    ("FanoutDeadLetterQueueNotEmpty", Fault::PoisonPill),
    ("FanoutErrors", Fault::FanoutKilled),
    ("FanoutIteratorAge", Fault::FunctionThrottled),
    ("FanoutUndelivered", Fault::FanoutQueueGone),
    ("FillsDeadLetterQueueNotEmpty", Fault::CommitsGivenUp),
    ("FillsQueueAge", Fault::CommitsWait),
    ("FunctionErrors", Fault::FanoutKilled),
    ("FunctionThrottles", Fault::FunctionThrottled),
    ("HaulDeadLetterQueueNotEmpty", Fault::CommitsGivenUp),
    ("HaulQueueAge", Fault::CommitsWait),
    ("LevelsDeadLetterQueueNotEmpty", Fault::StatesGivenUp),
    ("LevelsProjectorUndelivered", Fault::RetryQueueGone),
    ("LevelsRetryQueueNotEmpty", Fault::StatesWait),
    ("ManyRequestsRefused", Fault::CallerThrottled),
    ("ReadingsDeadLetterQueueNotEmpty", Fault::CommitsGivenUp),
    ("ReadingsQueueAge", Fault::CommitsWait),
    ("SequencerIteratorAge", Fault::SequencerDown),
    ("StockBehind", Fault::SequencerDown),
    ("StuckHauls", Fault::HaulStuck),
    ("Unreconciled", Fault::RowLost),
];

/// The alarms whose fault is not acted out, each with the reason.
const NOT_ACTED_OUT: [(&str, &str); 1] = [(
    "AccountConcurrency",
    "it compares running functions with a quota of the account, and the local stack is in no account",
)];

/// The faults of the first stack. In this order, no fault makes the alarm of a later fault ring.
const OF_STATES: [Fault; 9] = [
    Fault::FanoutKilled,
    Fault::RowLost,
    Fault::HaulStuck,
    Fault::PoisonPill,
    Fault::StatesWait,
    Fault::RequestsFail,
    Fault::StatesGivenUp,
    Fault::RetryQueueGone,
    Fault::FanoutQueueGone,
];

/// The faults of the second stack, in an order of the same kind.
const OF_COMMITS: [Fault; 6] = [
    Fault::CallerThrottled,
    Fault::CommitsWait,
    Fault::CommitsGivenUp,
    Fault::SequencerDown,
    Fault::FunctionThrottled,
    Fault::LogThrottled,
];

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
        "EvaluationPeriods: 6, Threshold: 0,",
        "EvaluationPeriods: 6, Threshold: 9,",
    ),
];

#[test]
fn every_alarm_of_the_template_has_a_fault_or_a_reason() {
    let template = Template::read();
    let known: Vec<_> = TABLE
        .iter()
        .map(|(alarm, _)| *alarm)
        .chain(NOT_ACTED_OUT.iter().map(|(alarm, _)| *alarm))
        .collect();
    let alarms = template.alarms();
    assert_eq!(known.iter().collect::<BTreeSet<_>>(), alarms.iter().collect());
    assert_eq!(known.len(), alarms.len(), "an alarm has one entry");
    for (alarm, fault) in TABLE {
        assert!(
            OF_STATES.contains(&fault) || OF_COMMITS.contains(&fault),
            "{alarm}: {fault:?} is not acted out"
        );
    }
    for (alarm, reason) in NOT_ACTED_OUT {
        assert!(!reason.is_empty(), "{alarm}");
    }
}

#[tokio::test]
async fn no_alarm_rings_on_a_healthy_stack_and_faults_of_states_ring_theirs() {
    // In this copy of the template, the fanout gives up a record after one retry, and not after
    // twelve hours. The test kills the fanout once.
    let folder = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(template::path()).unwrap();
    let text = text.replace("MaximumRetryAttempts: 10000", "MaximumRetryAttempts: 1");
    let copy = folder.path().join("template.yaml");
    std::fs::write(&copy, text).unwrap();
    let config = "samconfig.toml";
    std::fs::copy(template::path().with_file_name(config), folder.path().join(config)).unwrap();
    let stack = LocalStack::start_as(&["--template", copy.to_str().unwrap()]).await;

    traffic(&stack).await;
    let healthy = Observed::new(&stack);
    assert_eq!(healthy.ringing(&Template::read()).await, BTreeSet::new());
    // Commits that wait for anything would be too old after ten minutes.
    let later = healthy.later(SignedDuration::from_mins(10));
    eventually("nothing waits", async || {
        later.ringing(&Template::read()).await.is_empty().then_some(())
    })
    .await;

    act_out(&stack, &OF_STATES).await;
}

#[tokio::test]
async fn faults_of_commits_and_requests_ring_their_alarms() {
    let stack =
        LocalStack::start_as(&["--parameter-overrides", "CallerRequestsPerSecond=20"]).await;
    act_out(&stack, &OF_COMMITS).await;
}

/// Acts the faults out one after the other. The alarms of each fault ring after the fault, and not
/// before it.
async fn act_out(stack: &LocalStack, faults: &[Fault]) {
    let template = Template::read();
    for fault in faults {
        let observed = Observed::new(stack).later(fault.seen_after());
        let alarms: Vec<_> =
            TABLE.iter().filter(|(_, of)| of == fault).map(|(alarm, _)| *alarm).collect();
        for alarm in &alarms {
            eventually(&format!("{alarm} is quiet before {fault:?}"), async || {
                (!observed.rings(&template, alarm).await).then_some(())
            })
            .await;
        }
        fault.act(stack).await;
        for alarm in alarms {
            let rings = async || observed.rings(&template, alarm).await.then_some(());
            eventually(&format!("{alarm} rings after {fault:?}"), rings).await;
            // At an age far below the limit, the alarm is quiet. A limit that is too low would ring
            // at every delay.
            if alarm.ends_with("Age") {
                let shift = fault.seen_after() / 3 - SignedDuration::from_secs(40);
                let young = Observed::new(stack).later(shift);
                assert!(
                    !young.rings(&template, alarm).await,
                    "{alarm} rings {shift} after {fault:?}"
                );
            }
            for (_, from, to) in BROKEN.iter().filter(|(broken, ..)| *broken == alarm) {
                let changed = Template::changed(from, to);
                assert!(!observed.rings(&changed, alarm).await, "{alarm} rings with {to}");
            }
        }
    }
}
