//! Slips in the wiring of `$all` and of a subscription, each made once in the template of the test
//! application (docs/wiring.md).

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod by_hand;

use ledgerline_sam::{check, manifests, template::Source};
use ledgerline_testing::workspace;

use self::by_hand::{by_hand, unwrapped};

/// Slips: a text in the template, the text that replaces it, and the problem that must be reported.
const SLIPS: [(&str, &str, &str); 14] = [
    (
        "        OPERATORS_CLAIM: !Ref OperatorsClaim\n",
        "",
        "TankCommandsFunction: the variable OPERATORS_CLAIM is missing",
    ),
    (
        "            ${StockSubscriptionFunction}:live tank\n",
        "            \n",
        "the sequencer does not invoke StockSubscriptionFunction: write ${StockSubscriptionFunction}:live tank",
    ),
    (
        "${StockSubscriptionFunction}:live tank",
        "${StockSubscriptionFunction}:live acount",
        "the sequencer does not invoke StockSubscriptionFunction: write ${StockSubscriptionFunction}:live tank",
    ),
    (
        "            ${StockSubscriptionFunction}:live tank\n",
        "            ${StockSubscriptionFunction}:live tank\n            ${TankQueriesFunction}:live tank\n",
        "SUBSCRIPTIONS has TankQueriesFunction, which is not a function of a subscription",
    ),
    (
        "        Again: { Type: Schedule, Properties: { Schedule: rate(1 minute) } }\n",
        "        Again: { Type: SQS, Properties: { Queue: !GetAtt HaulQueue.Arn } }\n",
        "StockSubscriptionFunction: it needs one Schedule",
    ),
    (
        "${StockSubscriptionFunction.Arn}:live",
        "${LevelsProjectorFunction.Arn}:live",
        "SequencerFunction needs lambda:InvokeFunction on StockSubscriptionFunction:live: allow it",
    ),
    (
        "Path: \"/events\"\n            Auth: { AuthorizationScopes: [tanks/events] }",
        "Path: \"/events\"\n            Auth: { AuthorizationScopes: [tanks/read] }",
        "GET /events must require the scope tanks/events, and no other",
    ),
    (
        "MetricName: SubscriptionBehind",
        "MetricName: SubscriptionLate",
        "no alarm monitors SubscriptionBehind of Function=StockSubscriptionFunction",
    ),
    (
        "      KeySchema: [{ AttributeName: book, KeyType: HASH }, { AttributeName: entry, KeyType: RANGE }]\n",
        "      KeySchema: [{ AttributeName: book, KeyType: HASH }]\n",
        "StockSubscriptionFunction expects the keys book (HASH), entry (RANGE), not book (HASH)",
    ),
    (
        "            LevelsProjectorFunction ${LevelsTable} tankId - tank\n",
        "",
        "ReconcilerFunction: no line of SUBSCRIBERS compares LevelsProjectorFunction: write LevelsProjectorFunction ${LevelsTable} tankId - tank",
    ),
    (
        "${ReadingsTable} tankId entry tank",
        "${ReadingsTable} tankId - tank",
        "no subscriber has this line, so delete it: ReadingsProjectorFunction ${ReadingsTable} tankId - tank",
    ),
    (
        "                  - !GetAtt StockTable.Arn\n",
        "",
        "ReconcilerFunction needs dynamodb:GetItem on StockTable: allow it",
    ),
    (
        "        Daily: { Type: Schedule, Properties: { Schedule: rate(1 day) } }\n",
        "        Daily: { Type: SQS, Properties: { Queue: !GetAtt HaulQueue.Arn } }\n",
        "ReconcilerFunction: it needs one Schedule event: write Schedule: rate(1 day)",
    ),
    (
        "MetricName: Unreconciled",
        "MetricName: Reconciled",
        "no alarm monitors Unreconciled of Function=ReconcilerFunction",
    ),
];

#[test]
fn slips_in_the_wiring_of_all_and_of_a_subscription_are_reported() {
    let root = workspace();
    let path = root.join("template.yaml");
    let template = unwrapped(&std::fs::read_to_string(&path).unwrap());
    let runbook = std::fs::read_to_string(root.join("../../../docs/runbook.md")).unwrap();
    let manifests = manifests::read_file(&path).unwrap();
    let said = |template: &str| {
        let source = Source::parse(&by_hand(template), &path).unwrap();
        check::problems(&source, &manifests, &runbook)
    };
    let source = Source::parse(&template, &path).unwrap();
    assert_eq!(check::problems(&source, &manifests, &runbook), Vec::<String>::new());
    assert_eq!(said(&template), Vec::<String>::new());
    let samples = ledgerline_tools::sample_problems(&source, &manifests, &root);
    assert_eq!(samples, Vec::<String>::new());
    for (right, wrong, expected) in SLIPS {
        assert!(template.contains(right), "{right}");
        let said = said(&template.replacen(right, wrong, 1));
        assert!(said.iter().any(|said| said.contains(expected)), "{expected}\n{}", said.join("\n"));
    }
}
