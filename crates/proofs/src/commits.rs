//! Commits, as the applications would write them.

use bank::{account::Account, transfer::Transfer};
use fastrand::Rng;
use jiff::Timestamp;
use ledgerline::{Aggregate, Commit, Context, Meta, StreamId, encode, encode_state};
use links::{link::Link, user::User};
use todo::todo::Todo;
use widgets::widget::Widget;

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
    actor: String,
    version: u64,
    state: A::State,
    commits: Vec<Commit>,
}

impl<A: Aggregate> Author<A> {
    fn new(id: &str, actor: &str) -> Option<Self> {
        let (stream, actor) = (StreamId::new(A::CATEGORY, id).ok()?, actor.to_owned());
        Some(Self { stream, actor, version: 0, state: A::initial(), commits: Vec::new() })
    }

    /// Adds what the command causes, if it causes anything.
    fn write(&mut self, command: &A::Command, embed: bool) {
        let at = Timestamp::from_second(1_795_253_400 + i64::try_from(self.version).unwrap_or(0));
        let at = at.unwrap_or(Timestamp::UNIX_EPOCH);
        let context = Context { at, actor: Some(self.actor.clone()) };
        let Ok(events) = A::decide(&self.state, command, &context) else { return };
        let recorded: Result<Vec<_>, _> = events.iter().map(encode::<A>).collect();
        let Some(recorded) = recorded.ok().filter(|events| !events.is_empty()) else { return };
        self.state = ledgerline::fold::<A>(self.state.clone(), &events);
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
pub(crate) fn account(id: &str, rng: &mut Rng) -> Vec<Commit> {
    use bank::account::Command;
    let Some(mut author) = Author::<Account>::new(id, "ada") else { return Vec::new() };
    author.write(&Command::Open { owner: "Ada".into(), currency: "EUR".into() }, rng.bool());
    for _ in 0..rng.u32(1..6) {
        let (amount, reference) = (rng.i64(1..100), rng.bool().then(|| "rent".to_owned()));
        let command = if rng.bool() {
            Command::Credit { amount, reference }
        } else {
            Command::Debit { amount, reference }
        };
        author.write(&command, rng.bool());
    }
    author.commits
}

/// A todo that is changed and perhaps deleted.
pub(crate) fn todo(id: &str, rng: &mut Rng) -> Vec<Commit> {
    use todo::todo::Command;
    let Some(mut author) = Author::<Todo>::new(id, "ada") else { return Vec::new() };
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

/// A widget that is created and changed.
pub(crate) fn widget(id: &str, rng: &mut Rng) -> Vec<Commit> {
    use widgets::widget::Command;
    let Some(mut author) = Author::<Widget>::new(id, "ada") else { return Vec::new() };
    author.write(&Command::Create { name: "Cog".into(), description: "Round".into(), stock: 1 }, rng.bool());
    for stock in 2..4 {
        author.write(&Command::UpdateStock { stock }, rng.bool());
    }
    author.commits
}

/// A transfer that is asked for and refused.
pub(crate) fn transfer(id: &str, rng: &mut Rng) -> Vec<Commit> {
    use bank::transfer::{Command, Step};
    let Some(mut author) = Author::<Transfer>::new(id, "ada") else { return Vec::new() };
    author.write(&request(id, 30), rng.bool());
    author
        .write(&Command::Record { step: Step::Debit, outcome: Err("insufficient-funds".into()) }, rng.bool());
    author.commits
}

/// A transfer from one account to the other.
fn request(id: &str, amount: i64) -> bank::transfer::Command {
    bank::transfer::Command::Request {
        from_account_id: payer(id),
        to_account_id: receiver(id),
        amount,
        currency: "EUR".into(),
        reference: None,
    }
}

/// The account that a transfer's money comes from.
pub(crate) fn payer(transfer: &str) -> String {
    format!("{transfer}-from")
}

/// The account that it goes to.
pub(crate) fn receiver(transfer: &str) -> String {
    format!("{transfer}-to")
}

/// A transfer that was asked for just now.
pub(crate) fn requested(id: &str, amount: i64) -> Vec<Commit> {
    let Some(mut author) = Author::<Transfer>::new(id, "ada") else { return Vec::new() };
    author.write(&request(id, amount), true);
    author.commits
}

/// A user who registers, follows another one, and stops.
pub(crate) fn user(id: &str, other: &str) -> Vec<Commit> {
    use links::user::{Action, Command};
    let Some(mut author) = Author::<User>::new(id, id) else { return Vec::new() };
    for action in [
        Action::Register { name: "Ada".into(), email: "ada@example.com".into() },
        Action::Follow { other: other.into() },
        Action::Unfollow { other: other.into() },
        Action::Follow { other: other.into() },
    ] {
        author.write(&Command { user_id: id.into(), action }, true);
    }
    author.commits
}

/// An account with this balance.
pub(crate) fn balance(id: &str, amount: i64) -> Vec<Commit> {
    use bank::account::Command;
    let Some(mut author) = Author::<Account>::new(id, "ada") else { return Vec::new() };
    author.write(&Command::Open { owner: "Ada".into(), currency: "EUR".into() }, true);
    author.write(&Command::Credit { amount, reference: None }, true);
    author.commits
}

/// A link that a user rates again and again.
pub(crate) fn link(user_id: &str, link_url: &str, rng: &mut Rng) -> Vec<Commit> {
    let id = links::link::id(user_id, link_url);
    let Some(mut author) = Author::<Link>::new(&id, user_id) else { return Vec::new() };
    for _ in 0..rng.u32(1..7) {
        let command = links::link::Command {
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
