//! Commits, as the applications would write them.

use decider::{Aggregate, Context, encode, encode_state};
use domain::{account::Account, link::Link, todo::Todo};
use event_store::{Commit, Meta, StreamId};
use fastrand::Rng;
use jiff::Timestamp;

/// One of the applications.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Application {
    /// Accounts.
    Bank,
    /// Todos, which end with being forgotten.
    Todos,
    /// Links, whose ratings are added up over streams.
    Links,
}

/// All of them.
pub const APPLICATIONS: [Application; 3] = [Application::Bank, Application::Todos, Application::Links];

/// Writes one stream.
struct Author<A: Aggregate> {
    stream: StreamId,
    version: u64,
    state: A::State,
    commits: Vec<Commit>,
}

impl<A: Aggregate> Author<A> {
    fn new(id: &str) -> Option<Self> {
        let stream = StreamId::new(A::CATEGORY, id).ok()?;
        Some(Self { stream, version: 0, state: A::initial(), commits: Vec::new() })
    }

    /// Adds what the command causes, if it causes anything.
    fn write(&mut self, command: &A::Command, embed: bool) {
        let at = Timestamp::from_second(1_795_253_400 + i64::try_from(self.version).unwrap_or(0));
        let at = at.unwrap_or(Timestamp::UNIX_EPOCH);
        let context = Context { at, actor: Some("ada".into()) };
        let Ok(events) = A::decide(&self.state, command, &context) else { return };
        let recorded: Result<Vec<_>, _> = events.iter().map(encode::<A>).collect();
        let Some(recorded) = recorded.ok().filter(|events| !events.is_empty()) else { return };
        self.state = decider::fold::<A>(self.state.clone(), &events);
        self.version += 1;
        self.commits.push(Commit {
            stream: self.stream.clone(),
            version: self.version,
            events: recorded,
            state: encode_state::<A>(&self.state).ok().filter(|_| embed),
            command: format!("{}:{}", self.stream, self.version),
            at,
            meta: Meta::default(),
        });
    }
}

/// The commits of two streams, a few each; every other one embeds its state.
#[must_use]
pub fn write(application: Application, seed: u64, rng: &mut Rng) -> Vec<Vec<Commit>> {
    let streams = (0..2).map(|number| match application {
        Application::Bank => account(&format!("{seed}-{number}"), rng),
        Application::Todos => todo(&format!("{seed}-{number}"), rng),
        Application::Links => link(&format!("{seed}-{number}"), &format!("https://{seed}.example/"), rng),
    });
    streams.collect()
}

/// An account that is opened and booked on.
fn account(id: &str, rng: &mut Rng) -> Vec<Commit> {
    use domain::account::Command;
    let Some(mut author) = Author::<Account>::new(id) else { return Vec::new() };
    author.write(&Command::Open { owner: "Ada".into(), currency: "EUR".into() }, rng.bool());
    for _ in 0..rng.u32(1..6) {
        let (amount, reference) = (rng.i64(1..100), rng.bool().then(|| "rent".to_owned()));
        let command =
            if rng.bool() { Command::Credit { amount, reference } } else { Command::Debit { amount, reference } };
        author.write(&command, rng.bool());
    }
    author.commits
}

/// A todo that is changed and perhaps deleted.
fn todo(id: &str, rng: &mut Rng) -> Vec<Commit> {
    use domain::todo::Command;
    let Some(mut author) = Author::<Todo>::new(id) else { return Vec::new() };
    author.write(&Command::Create { title: "a".into(), message: String::new() }, rng.bool());
    for number in 0..rng.u32(1..6) {
        let title = Some(number.to_string());
        author.write(&Command::Update { title, message: None, done: Some(rng.bool()) }, rng.bool());
    }
    if rng.bool() {
        author.write(&Command::Delete, rng.bool());
    }
    author.commits
}

/// A link that a user rates again and again.
fn link(user_id: &str, link_url: &str, rng: &mut Rng) -> Vec<Commit> {
    let Some(mut author) = Author::<Link>::new(&domain::link::id(user_id, link_url)) else { return Vec::new() };
    for _ in 0..rng.u32(1..7) {
        let command = domain::link::Command {
            user_id: user_id.into(),
            link_url: link_url.into(),
            rating: rng.u8(1..=5),
            title: rng.bool().then(|| "a title".to_owned()),
            image: None,
            tags: rng.bool().then(|| vec![rng.u8(..).to_string()]),
        };
        author.write(&command, rng.bool());
    }
    author.commits
}
