//! The functions that belong to no application.

use applications::All;

ledgerline_lambda::handlers! {
    events_queries: ledgerline_lambda::events::run::<All>();
    fanout: ledgerline_lambda::fanout::run::<All>();
    reconciler: ledgerline_lambda::reconciler::run();
    sequencer: ledgerline_lambda::sequencer::run();
}
