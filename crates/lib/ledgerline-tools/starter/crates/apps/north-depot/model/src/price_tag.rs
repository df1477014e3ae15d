//! Price tags: each is printed once. No client creates a price tag: a process manager does, for
//! each stock item.

use ledgerline::{Aggregate, Context, Refusal, Text};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The text on a price tag.
pub type PriceTagName = Text<200>;

ledgerline::events! {
    /// The stored events. A shape changes only together with its schema number and an upcaster.
    pub enum Event {
        /// The price tag was printed.
        PriceTagPrinted: 1 { name: String },
    }
}

/// The state of a price tag.
#[derive(Debug, Clone, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct State {
    /// The text, after the price tag is printed.
    pub name: Option<String>,
}

/// The commands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Print the price tag with this text.
    Create(PriceTagName),
}

ledgerline::refusals! {
    /// The price tag is printed already.
    EXISTS = already_exists("price-tag-exists", "this price tag is printed");
}

/// The aggregate. A price tag has the id of its stock item.
#[derive(Debug)]
pub struct PriceTag;

impl Aggregate for PriceTag {
    const CATEGORY: &'static str = "pricetag";
    const STATE_SCHEMA: u32 = 1;
    const REFUSALS: &'static [Refusal] = REFUSALS;

    type State = State;
    type Event = Event;
    type Command = Command;

    fn evolve(_: State, event: &Event) -> State {
        let Event::PriceTagPrinted { name } = event;
        State { name: Some(name.clone()) }
    }

    fn decide(state: &State, command: &Command, _: &Context) -> Result<Vec<Event>, Refusal> {
        match command {
            Command::Create(_) if state.name.is_some() => Err(EXISTS),
            Command::Create(name) => Ok(vec![Event::PriceTagPrinted { name: name.to_string() }]),
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use ledgerline::spec::{given, valid};

    use super::*;

    #[test]
    fn a_price_tag_is_printed_once() {
        let context = Context { at: Timestamp::UNIX_EPOCH, actor: None };
        let printed = || Event::PriceTagPrinted { name: "First".into() };
        let create = || Command::Create(valid("First"));
        given::<PriceTag>([]).when(create(), &context).then([printed()]);
        given::<PriceTag>([printed()]).when(create(), &context).then_refused(&EXISTS);
    }
}
