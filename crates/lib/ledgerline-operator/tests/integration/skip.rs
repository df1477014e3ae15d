//! A commit that a subscription cannot apply is skipped, on a local stack.

use ledgerline::{EventLog, StreamId, contract};
use ledgerline_testing::{LocalStack, Tool, eventually, tank::install};

/// `$all` has an unreadable commit, as if a newer program had written it, and all rows after it
/// wait.
#[tokio::test]
async fn an_operator_skips_a_commit_that_a_subscription_cannot_apply() {
    let stack = LocalStack::start(None).await;
    let unknown = StreamId::new("tank", "unknown").unwrap();
    stack.store().append(&contract::commit(&unknown, 1), None).await.unwrap();
    install(&stack, 5).await;
    eventually("the subscription stops", async || {
        let failed = stack.logged(&format!("\"the changes of version 1 of {unknown}\"")).await;
        (!failed.is_empty()).then_some(())
    })
    .await;
    assert!(stack.list("/stock?limit=100", "rows").await.is_empty());

    let ledger = Tool::at(&stack);
    let sure = ["--write", "--yes", "--why", "a newer program wrote it"];
    let skip = |view, stream, version, sure: &[&str]| {
        ledger.run(&[&["skip", view, stream, version], sure].concat())
    };
    let (code, shown) = skip("Stock", unknown.as_str(), "1", &[]);
    assert_eq!(code, 0);
    assert!(shown[0]["is"].as_str().unwrap().starts_with("not skipped"), "{shown:?}");
    for (view, stream, version) in [
        ("Levels", unknown.as_str(), "1"),
        ("Stock", unknown.as_str(), "2"),
        ("Stock", "haul-1", "1"),
    ] {
        assert_eq!(skip(view, stream, version, &sure).0, 1, "{view} {stream} {version}");
    }
    assert_eq!(skip("Stock", unknown.as_str(), "1", &sure).0, 0);
    // The next commit invokes the subscription.
    install(&stack, 7).await;
    eventually("the subscription resumes", async || {
        (stack.list("/stock?limit=100", "rows").await.len() == 2).then_some(())
    })
    .await;
    assert_eq!(skip("Stock", unknown.as_str(), "1", &[]).1[0]["is"], "skipped already");
}
