#![doc = include_str!("../README.md")]

pub mod commands;
pub mod haul;
pub mod process_manager;
pub mod queries;
pub mod views;

use ledgerline::{Aggregates, Visitor, tank::Tank};

use self::haul::Haul;

/// The aggregates of the application.
#[derive(Debug)]
pub struct Depot;

impl Aggregates for Depot {
    fn visit(visitor: &mut impl Visitor) {
        visitor.visit::<Tank>();
        visitor.visit::<Haul>();
    }
}

/// The folder of the application: its template, events and shapes.
pub const FOLDER: &str = env!("CARGO_MANIFEST_DIR");

/// The template.
pub const TEMPLATE: &str = include_str!("../template.yaml");

macro_rules! event {
    ($path:literal) => {
        ($path, include_str!(concat!("../events/", $path)))
    };
}

/// The sample events that concern a tank alone, and the answers to its commands, by their paths in
/// `events/`.
pub const EVENTS: [(&str, &str); 11] = [
    event!("tank-fanout/commits.json"),
    event!("tank-fanout/unreadable.json"),
    event!("fills-projector/commits.json"),
    event!("levels-projector/drawn.json"),
    event!("tank-commands/answers.md"),
    event!("tank-commands/draw.json"),
    event!("tank-commands/fill.json"),
    event!("tank-commands/install.json"),
    event!("tank-commands/invalid-amount.json"),
    event!("tank-commands/replay.json"),
    event!("tank-commands/scrap.json"),
];

#[cfg(test)]
mod tests {
    use ledgerline::shapes::check;

    use super::haul::Haul;

    #[test]
    fn events_and_states_of_every_shape_that_was_written_are_read() {
        check::<Haul>(include_str!("../shapes/haul.json")).unwrap();
    }
}
