//! A user: registered with a name and an address for mails, and following other users. The id is
//! derived from the subject of the caller's token, so that no other caller can send the user's
//! commands.

use std::collections::BTreeMap;

use ledgerline::{Aggregate, Context, Refusal};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::values::{Email, Name, UserId};

/// The largest number of users that a user can follow. The state holds all of them, and must stay
/// well within one item.
pub const MAX_FOLLOWS: usize = 1_000;

// --- Events --------------------------------------------------------------------------------------

ledgerline::events! {
    /// The events of a user.
    pub enum Event {
        /// The user registered.
        UserRegistered: 1 { user_id: String, name: String, email: String },
        /// The user changed the address for mails.
        UserEmailUpdated: 1 { user_id: String, email: String },
        /// The user follows another user, to see their ratings. Followings of a user are numbered
        /// from 1. The number distinguishes this following from an earlier one of the same user.
        UserFollowed: 1 { user_id: String, followed_user_id: String, following: u64 },
        /// The following of this number ended.
        UserUnfollowed: 1 { user_id: String, unfollowed_user_id: String, following: u64 },
    }
}

// --- State ---------------------------------------------------------------------------------------

/// The state of a user.
#[derive(Debug, Clone, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "camelCase")]
pub enum State {
    /// The stream has no commits.
    #[default]
    Unregistered,
    /// The user is registered.
    Registered(Registered),
}

/// The data of a user that the rules need.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Registered {
    /// The name of the user.
    pub name: String,
    /// The address for mails.
    pub email: String,
    /// The users whom this user follows, and the number of each following.
    pub follows: BTreeMap<String, u64>,
    /// The number of all followings, including the ended ones.
    pub followings: u64,
}

impl State {
    fn with(self, change: impl FnOnce(&mut Registered)) -> Self {
        match self {
            Self::Unregistered => Self::Unregistered,
            Self::Registered(mut user) => {
                change(&mut user);
                Self::Registered(user)
            }
        }
    }
}

// --- Decisions -----------------------------------------------------------------------------------

/// A command to a user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// The user who sends the command.
    pub user_id: UserId,
    /// The action of the user.
    pub action: Action,
}

/// An action of a user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Register with a name and an address for mails.
    Register(Name, Email),
    /// Change the address for mails.
    UpdateEmail(Email),
    /// Follow another user, who need not be registered: the stream of the other user is not read.
    Follow(UserId),
    /// Stop following another user.
    Unfollow(UserId),
}

ledgerline::refusals! {
    /// The user is not registered.
    UNKNOWN = not_found("unknown-user", "there is no such user");
    /// The user is registered already.
    EXISTS = already_exists("user-exists", "the user is registered already");
    /// Callers act only for themselves.
    NOT_YOU = forbidden("not-you", "this is another user's to do");
    /// A user cannot follow themselves.
    YOURSELF = refused("follows-themselves", "nobody follows themselves");
    /// The user follows the largest allowed number of users.
    TOO_MANY = refused("too-many-follows", "nobody follows more than 1000 others");
}

/// The user aggregate.
#[derive(Debug)]
pub struct User;

impl Aggregate for User {
    const CATEGORY: &'static str = "user";
    const STATE_SCHEMA: u32 = 1;
    const REFUSALS: &'static [Refusal] = REFUSALS;

    type State = State;
    type Event = Event;
    type Command = Command;

    fn evolve(state: State, event: &Event) -> State {
        match event {
            Event::UserRegistered { name, email, .. } => State::Registered(Registered {
                name: name.clone(),
                email: email.clone(),
                follows: BTreeMap::new(),
                followings: 0,
            }),
            Event::UserEmailUpdated { email, .. } => {
                state.with(|user| user.email.clone_from(email))
            }
            Event::UserFollowed { followed_user_id, following, .. } => state.with(|user| {
                user.follows.insert(followed_user_id.clone(), *following);
                user.followings = user.followings.max(*following);
            }),
            Event::UserUnfollowed { unfollowed_user_id, .. } => state.with(|user| {
                user.follows.remove(unfollowed_user_id);
            }),
        }
    }

    fn decide(state: &State, command: &Command, context: &Context) -> Result<Vec<Event>, Refusal> {
        let Command { user_id, action } = command;
        if context.actor.as_deref().and_then(UserId::from_subject).as_ref() != Some(user_id) {
            return Err(NOT_YOU);
        }
        let user = match state {
            State::Unregistered => Err(UNKNOWN),
            State::Registered(user) => Ok(user),
        };
        let (id, event) = (user_id.to_string(), |event| Ok(vec![event]));
        match action {
            Action::Register(..) if user.is_ok() => Err(EXISTS),
            Action::Register(name, email) => event(Event::UserRegistered {
                user_id: id,
                name: name.to_string(),
                email: email.to_string(),
            }),
            Action::UpdateEmail(email) => match user? {
                user if user.email == *email.get() => Ok(Vec::new()),
                _ => event(Event::UserEmailUpdated { user_id: id, email: email.to_string() }),
            },
            Action::Follow(other) => follow(user?, user_id, other),
            Action::Unfollow(other) => Ok(unfollow(user?, user_id, other)),
        }
    }
}

fn follow(user: &Registered, user_id: &UserId, other: &UserId) -> Result<Vec<Event>, Refusal> {
    if other == user_id {
        return Err(YOURSELF);
    }
    if user.follows.contains_key(other.get()) {
        return Ok(Vec::new());
    }
    if user.follows.len() >= MAX_FOLLOWS {
        return Err(TOO_MANY);
    }
    Ok(vec![Event::UserFollowed {
        user_id: user_id.to_string(),
        followed_user_id: other.to_string(),
        following: user.followings + 1,
    }])
}

fn unfollow(user: &Registered, user_id: &UserId, other: &UserId) -> Vec<Event> {
    let ended = user.follows.get(other.get()).map(|following| Event::UserUnfollowed {
        user_id: user_id.to_string(),
        unfollowed_user_id: other.to_string(),
        following: *following,
    });
    ended.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use ledgerline::{
        fold,
        spec::{given, live, valid},
    };
    use proptest::prelude::*;

    use super::*;

    fn by(actor: &str) -> Context {
        Context { at: Timestamp::UNIX_EPOCH, actor: Some(actor.into()) }
    }

    fn ada(action: Action) -> Command {
        Command { user_id: valid("ada"), action }
    }

    fn register() -> Action {
        Action::Register(valid("Ada"), valid("ada@example.com"))
    }

    fn registered() -> Event {
        Event::UserRegistered {
            user_id: "ada".into(),
            name: "Ada".into(),
            email: "ada@example.com".into(),
        }
    }

    fn followed(other: &str, following: u64) -> Event {
        Event::UserFollowed { user_id: "ada".into(), followed_user_id: other.into(), following }
    }

    fn unfollowed(other: &str, following: u64) -> Event {
        Event::UserUnfollowed { user_id: "ada".into(), unfollowed_user_id: other.into(), following }
    }

    fn follow(other: &str) -> Command {
        ada(Action::Follow(valid(other)))
    }

    fn unfollow(other: &str) -> Command {
        ada(Action::Unfollow(valid(other)))
    }

    #[test]
    fn a_user_registers_once() {
        given::<User>([]).when(ada(register()), &by("ada")).then([registered()]);
        given::<User>([registered()]).when(ada(register()), &by("ada")).then_refused(&EXISTS);
        given::<User>([]).when(follow("bob"), &by("ada")).then_refused(&UNKNOWN);
    }

    #[test]
    fn no_other_caller_sends_a_users_commands() {
        for stranger in [by("eve"), Context { actor: None, ..by("ada") }] {
            for action in [register(), Action::Follow(valid("bob"))] {
                given::<User>([registered()]).when(ada(action), &stranger).then_refused(&NOT_YOU);
            }
        }
    }

    #[test]
    fn a_user_changes_the_address_for_mails() {
        let elsewhere = Action::UpdateEmail(valid("ada@example.org"));
        let updated =
            Event::UserEmailUpdated { user_id: "ada".into(), email: "ada@example.org".into() };
        given::<User>([registered()])
            .when(ada(elsewhere.clone()), &by("ada"))
            .then([updated.clone()]);
        given::<User>([registered(), updated]).when(ada(elsewhere), &by("ada")).then([]);
    }

    #[test]
    fn a_user_follows_another_user_once_and_never_themselves() {
        given::<User>([registered()]).when(follow("bob"), &by("ada")).then([followed("bob", 1)]);
        given::<User>([registered(), followed("bob", 1)]).when(follow("bob"), &by("ada")).then([]);
        given::<User>([registered()]).when(follow("ada"), &by("ada")).then_refused(&YOURSELF);
    }

    #[test]
    fn a_following_ends_and_the_next_one_has_another_number() {
        let history = [registered(), followed("bob", 1), followed("cleo", 2)];
        given::<User>(history.clone())
            .when(unfollow("bob"), &by("ada"))
            .then([unfollowed("bob", 1)]);
        given::<User>(history.clone()).when(unfollow("dora"), &by("ada")).then([]);
        let history = history.into_iter().chain([unfollowed("bob", 1)]);
        given::<User>(history).when(follow("bob"), &by("ada")).then([followed("bob", 3)]);
    }

    #[test]
    fn a_thousand_users_are_followed_and_one_more_is_refused() {
        let many = (1..=MAX_FOLLOWS as u64).map(|n| followed(&format!("u{n}"), n));
        let state = fold::<User>(
            User::initial(),
            &[registered()].into_iter().chain(many).collect::<Vec<_>>(),
        );
        assert_eq!(User::decide(&state, &follow("one-more"), &by("ada")), Err(TOO_MANY));
        assert_eq!(User::decide(&state, &follow("u1"), &by("ada")), Ok(vec![]));
        // With ids as long as Cognito's (36 bytes), the whole state stays below 64 KB. That is less
        // than a sixth of the 400 KB of an item.
        assert!(serde_json::to_vec(&state).unwrap().len() + MAX_FOLLOWS * 36 < 64_000);
    }

    /// Returns any command, built from any values: `None` if one of the values is invalid, because
    /// such a command cannot be built.
    fn any_command() -> impl Strategy<Value = Option<Command>> {
        let id = prop_oneof![4 => "[abc]", 1 => Just("ada".to_owned()), 1 => ".*"];
        let email = prop_oneof![3 => "[ab]@example\\.com", 1 => ".*"];
        (0..6, id, email, ".*").prop_map(|(kind, id, email, name)| {
            let id = UserId::new(id);
            let email = Email::new(email);
            Some(ada(match kind {
                0 => Action::Register(Name::new(name).ok()?, email.ok()?),
                1 => Action::UpdateEmail(email.ok()?),
                2 => Action::Unfollow(id.ok()?),
                _ => Action::Follow(id.ok()?),
            }))
        })
    }

    proptest! {
        /// For all commands of all callers in all orders, no user is followed twice at once, or
        /// follows themselves. Every following has a number of its own.
        #[test]
        fn followings_begin_and_end_in_turn(
            commands in prop::collection::vec((any_command(), any::<bool>()), 1..40),
        ) {
            let commands = commands.into_iter().filter_map(|(command, eve)| Some((command?, by(if eve { "eve" } else { "ada" }))));
            let commands = std::iter::once((ada(register()), by("ada"))).chain(commands);
            let (_, events) = live::<User>(commands);
            let mut followed = std::collections::BTreeMap::new();
            let mut last = 0;
            for event in &events {
                match event {
                    Event::UserFollowed { followed_user_id, following, .. } => {
                        prop_assert!(followed_user_id != "ada" && *following > last);
                        prop_assert_eq!(followed.insert(followed_user_id, following), None);
                        last = *following;
                    }
                    Event::UserUnfollowed { unfollowed_user_id, following, .. } => {
                        prop_assert_eq!(followed.remove(unfollowed_user_id), Some(following));
                    }
                    Event::UserRegistered { .. } | Event::UserEmailUpdated { .. } => {}
                }
            }
        }
    }
}
