//! The commands of the sessions in the documents, run against a local stack.

use ledgerline_testing::{
    LocalStack, Shell, blocks, eventually, session_of_application_is_real, sessions_are_real,
    workspace,
};

#[tokio::test]
async fn the_session_in_the_readme_is_real() {
    sessions_are_real(&workspace().join("README.md")).await;
}

#[tokio::test]
async fn the_session_of_the_application_is_real() {
    session_of_application_is_real().await;
}

#[tokio::test]
async fn the_session_in_the_order_document_is_real() {
    sessions_are_real(&workspace().join("docs/order.md")).await;
}

/// Runs the commands of lesson 3 as a reader types them.
#[tokio::test]
async fn no_money_is_lost_when_a_reader_of_the_lesson_kills_the_process_manager() {
    let lesson = std::fs::read_to_string(workspace().join("docs/learn/3-kill-a-function.md"));
    let lesson = lesson.unwrap();
    let stack = LocalStack::start(None).await;
    let mut shell = Shell::new(workspace());
    shell.replace("localhost:3000", stack.url());
    // Other tests run stacks, too.
    shell.replace("$(pgrep -nx local)", stack.process_id().to_string());
    shell.replace("--local ", format!("--local={} ", stack.aws_url()));
    let [
        ("sh", start),
        ("console", open),
        ("sh", kill),
        ("sh", count),
        ("console", money),
        ("sh", ledger),
    ] = blocks(&lesson)[..]
    else {
        panic!("{:?}", blocks(&lesson))
    };
    assert!(start.starts_with("cargo run -p local"));

    shell.session(open).await;
    shell.run(kill);
    assert!(stack.hops().iter().filter(|(.., text)| text.contains("transfer started")).count() > 5);
    eventually("every transfer is completed", async || {
        (shell.run(count).trim() == "50 \"status\":\"completed\"").then_some(())
    })
    .await;
    shell.session(money).await;
    let printed = shell.run(ledger);
    assert!(printed.contains("TransferCompleted"), "{printed}");
}
