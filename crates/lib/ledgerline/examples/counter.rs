//! A counter: an aggregate, a store in memory and three commands.

#![allow(clippy::print_stdout, reason = "it prints its result")]

use std::num::NonZeroUsize;

use ledgerline::{
    Aggregate, Cache, Context, Execution, Host, MemoryStore, Meta, Outcome, Refusal, execute,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

ledgerline::events! {
    /// The events of a counter.
    pub enum Event {
        /// The count rose by this number.
        Counted: 1 { by: u32 },
    }
}

const FULL: Refusal = Refusal::refused("full", "a counter ends at 10");

#[derive(Debug, Clone, Default, JsonSchema, Serialize, Deserialize)]
struct State {
    count: u32,
}

struct Counter;

impl Aggregate for Counter {
    const CATEGORY: &'static str = "counter";
    const STATE_SCHEMA: u32 = 1;
    const REFUSALS: &'static [Refusal] = &[FULL];
    type State = State;
    type Event = Event;
    type Command = u32;

    fn evolve(state: State, Event::Counted { by }: &Event) -> State {
        State { count: state.count + by }
    }

    fn decide(state: &State, by: &u32, _: &Context) -> Result<Vec<Event>, Refusal> {
        if state.count + by > 10 { Err(FULL) } else { Ok(vec![Event::Counted { by: *by }]) }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (store, cache) = (MemoryStore::default(), Cache::<Counter>::new(NonZeroUsize::MIN));
    let host = Host { pause: |pause| Box::pin(tokio::time::sleep(pause)) };
    let (stream, context) =
        (Counter::stream("clicks")?, Context { at: "2026-11-22T09:30:00Z".parse()?, actor: None });
    for (id, by) in [("first", 4), ("second", 5), ("third", 2)] {
        let meta = Meta::default();
        match execute(&store, &cache, &host, &Execution::new(&stream, &by, &context, id, &meta))
            .await
        {
            Ok(Outcome::Committed(now)) => {
                println!("{by} more: {} at version {}", now.state.count, now.version)
            }
            Ok(Outcome::Unchanged(_) | Outcome::Repeated(_)) => {
                println!("{by} more: nothing to append")
            }
            Err(error) => println!("{by} more: {error}"),
        }
    }
    Ok(())
}
