#![doc = include_str!("../README.md")]

pub mod commands;
pub mod haul;
pub mod process_manager;
pub mod queries;
pub mod views;

use ledgerline::{Aggregates, Visitor, testing::tank::Tank};

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
