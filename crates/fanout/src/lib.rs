//! The functions behind the `Commits` stream, and the reader of `$all`.

use applications::All;

ledgerline_lambda::handlers! {
    bodies: &["link", "user"], ledgerline_s3::open;
    events_queries: ledgerline_lambda::events::run::<All>();
    fanout: ledgerline_lambda::fanout::run::<All>();
    reconciler: ledgerline_lambda::reconciler::run();
    sequencer: ledgerline_lambda::sequencer::run();
}
