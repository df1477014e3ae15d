//! The functions behind the `Commits` stream, and what reads `$all`.

use applications::All;

ledgerline_lambda::handlers! {
    fanout: ledgerline_lambda::fanout::run::<All>();
}
