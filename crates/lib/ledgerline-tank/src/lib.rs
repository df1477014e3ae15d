#![doc = include_str!("../README.md")]

pub mod commands;
pub mod haul;
pub mod process_manager;
pub mod queries;
pub mod views;

use ledgerline::{Aggregate, Aggregates, Visitor, testing::tank::Tank};

use self::haul::Haul;

/// The aggregates and rows of the application.
#[derive(Debug)]
pub struct Depot;

impl Aggregates for Depot {
    fn visit(visitor: &mut impl Visitor) {
        visitor.row::<views::Level>("levels");
        visitor.row::<views::Reading>("readings");
        visitor.row::<views::StockRow>("stock");
        visitor.visit::<Tank>();
        visitor.visit::<Haul>();
    }
}

ledgerline_lambda::handlers! {
    bodies: &[Tank::CATEGORY], ledgerline_s3::open;
    fills_projector: ledgerline_lambda::log_projector::run(views::FILLS_VIEW);
    haul: ledgerline_lambda::process_manager::run(async |_, store| Ok(process_manager::Hauls::new(store)));
    haul_commands: ledgerline_lambda::commands::run(commands::hauls());
    levels_projector: ledgerline_lambda::state_projector::run(views::LEVELS_VIEW);
    readings_projector: ledgerline_lambda::log_projector::run(views::READINGS_VIEW);
    stock_queries: ledgerline_lambda::queries::run(queries::stock());
    stock_subscription: ledgerline_lambda::subscription::run(views::STOCK_VIEW);
    tank_commands: ledgerline_lambda::commands::run(commands::tanks());
    tank_events_queries: ledgerline_lambda::events::run::<Depot>();
    tank_fanout: ledgerline_lambda::fanout::run::<Depot>();
    tank_queries: ledgerline_lambda::queries::run(queries::tanks());
    tank_reconciler: ledgerline_lambda::reconciler::run();
    tank_sequencer: ledgerline_lambda::sequencer::run();
}

/// The folder of the application: its template, events and shapes.
pub const FOLDER: &str = env!("CARGO_MANIFEST_DIR");

/// The template.
pub const TEMPLATE: &str = include_str!("../template.yaml");

macro_rules! files {
    ($folder:literal: $($path:literal),* $(,)?) => {
        [$(($path, include_str!(concat!("../", $folder, "/", $path)))),*]
    };
}

/// The sample events that concern a tank alone, by their paths in `events/`.
pub const EVENTS: [(&str, &str); 10] = files! {
    "events":
    "tank-fanout/commits.json",
    "tank-fanout/unreadable.json",
    "fills-projector/commits.json",
    "levels-projector/drawn.json",
    "tank-commands/draw.json",
    "tank-commands/fill.json",
    "tank-commands/install.json",
    "tank-commands/invalid-amount.json",
    "tank-commands/republication.json",
    "tank-commands/scrap.json",
};

/// The answers to the commands of a tank, by their paths in `tests/answers/`.
pub const ANSWERS: [(&str, &str); 6] = files! {
    "tests/answers":
    "tank-commands/draw.json",
    "tank-commands/fill.json",
    "tank-commands/install.json",
    "tank-commands/invalid-amount.json",
    "tank-commands/republication.json",
    "tank-commands/scrap.json",
};

#[cfg(test)]
mod tests {
    use ledgerline::shapes::check;

    use super::haul::Haul;

    #[test]
    fn events_and_states_of_every_shape_that_was_written_are_read() {
        check::<Haul>(include_str!("../shapes/haul.json")).unwrap();
    }
}
