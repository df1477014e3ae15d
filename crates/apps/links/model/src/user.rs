//! A user: registered with a name and an address for mails, and following other users. The id is made of the subject of
//! the caller's token, so that a user's commands are nobody else's.

use std::collections::BTreeMap;

use ledgerline::{Aggregate, Context, EventType, Rejection, RejectionKind};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, Serialize};

// --- Id ---------------------------------------------------------------------------------------------------------

/// Streams are named `user-<user id>`.
pub const CATEGORY: &str = "user";

/// The longest id, in characters: what the name of a stream allows.
const MAX_ID: usize = 128;

/// What is written in another way in an id: all but letters, digits, dots, dashes and underscores.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'.').remove(b'-').remove(b'_');

/// The id of the user who signs in as this subject, unless it would be too long: the subject itself, with everything that
/// the names of streams do not have written as a colon and the byte in hexadecimal digits. No two subjects have one id.
#[must_use]
pub fn id_of(subject: &str) -> Option<String> {
    let id = utf8_percent_encode(subject, ENCODED).to_string().replace('%', ":");
    (1..=MAX_ID).contains(&id.len()).then_some(id)
}

/// How many others a user can follow: the state, which has them all, stays well within one item.
pub const MAX_FOLLOWS: usize = 1_000;

// --- Events -----------------------------------------------------------------------------------------------------

/// What a user did. These types are the storage format: change a shape only together with an upcaster in
/// [`User::EVENTS`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", content = "data")]
pub enum Event {
    /// The user exists from now on.
    #[serde(rename_all = "camelCase")]
    UserRegistered {
        /// Who.
        user_id: String,
        /// How the user is called.
        name: String,
        /// Where mails go.
        email: String,
    },
    /// Mails go somewhere else.
    #[serde(rename_all = "camelCase")]
    UserEmailUpdated {
        /// Who.
        user_id: String,
        /// Where mails go from now on.
        email: String,
    },
    /// The user wants to see what somebody rates.
    #[serde(rename_all = "camelCase")]
    UserFollowed {
        /// Who.
        user_id: String,
        /// Whom.
        followed_user_id: String,
        /// The how manieth following of this user it is, from 1: tells it from an earlier one of the same other.
        following: u64,
    },
    /// No longer.
    #[serde(rename_all = "camelCase")]
    UserUnfollowed {
        /// Who.
        user_id: String,
        /// Whom.
        unfollowed_user_id: String,
        /// The following that ends.
        following: u64,
    },
}

// --- State ------------------------------------------------------------------------------------------------------

/// What the rules need.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct State {
    /// Whether the user is registered.
    pub registered: bool,
    /// How the user is called.
    pub name: String,
    /// Where mails go.
    pub email: String,
    /// Whom the user follows now, and the number of that following.
    pub follows: BTreeMap<String, u64>,
    /// How often the user followed somebody.
    pub followings: u64,
}

// --- Decisions --------------------------------------------------------------------------------------------------

/// What a client can ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// For which user.
    pub user_id: String,
    /// What.
    pub action: Action,
}

/// What a user can do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Register.
    Register {
        /// How the user is called.
        name: String,
        /// Where mails go.
        email: String,
    },
    /// Have mails sent somewhere else.
    UpdateEmail {
        /// Where mails go from now on.
        email: String,
    },
    /// Follow somebody, who need not be there: users are added without asking each other.
    Follow {
        /// Whom.
        other: String,
    },
    /// Follow somebody no longer.
    Unfollow {
        /// Whom.
        other: String,
    },
}

/// Why the answer is no.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Not registered.
    #[error("there is no such user")]
    Unknown,
    /// Registered already.
    #[error("the user is registered already")]
    Exists,
    /// It is another user's.
    #[error("this is another user's to do")]
    NotYou,
    /// Nobody follows themselves.
    #[error("nobody follows themselves")]
    Yourself,
    /// There are limits.
    #[error("nobody follows more than {MAX_FOLLOWS} others")]
    TooMany,
}

impl Rejection for Refusal {
    fn kind(&self) -> RejectionKind {
        match self {
            Self::Unknown => RejectionKind::NotFound,
            Self::Exists => RejectionKind::AlreadyExists,
            Self::NotYou => RejectionKind::Forbidden,
            Self::Yourself | Self::TooMany => RejectionKind::Refused,
        }
    }

    fn code(&self) -> &'static str {
        match self {
            Self::Unknown => "unknown-user",
            Self::Exists => "user-exists",
            Self::NotYou => "not-you",
            Self::Yourself => "follows-themselves",
            Self::TooMany => "too-many-follows",
        }
    }
}

fn follow(state: &State, user_id: &str, other: &str) -> Result<Vec<Event>, Refusal> {
    if other == user_id {
        return Err(Refusal::Yourself);
    }
    if state.follows.contains_key(other) {
        return Ok(Vec::new());
    }
    if state.follows.len() >= MAX_FOLLOWS {
        return Err(Refusal::TooMany);
    }
    Ok(vec![Event::UserFollowed {
        user_id: user_id.into(),
        followed_user_id: other.into(),
        following: state.followings + 1,
    }])
}

fn unfollow(state: &State, user_id: &str, other: &str) -> Vec<Event> {
    let ended = state.follows.get(other).map(|following| Event::UserUnfollowed {
        user_id: user_id.into(),
        unfollowed_user_id: other.into(),
        following: *following,
    });
    ended.into_iter().collect()
}

/// The user aggregate.
#[derive(Debug)]
pub struct User;

impl Aggregate for User {
    const CATEGORY: &'static str = CATEGORY;
    const STATE_SCHEMA: u32 = 1;
    const EVENTS: &'static [EventType] = &[
        EventType::new("UserRegistered"),
        EventType::new("UserEmailUpdated"),
        EventType::new("UserFollowed"),
        EventType::new("UserUnfollowed"),
    ];

    type State = State;
    type Event = Event;
    type Command = Command;
    type Rejection = Refusal;

    fn initial() -> State {
        State::default()
    }

    fn evolve(mut state: State, event: &Event) -> State {
        match event {
            Event::UserRegistered { name, email, user_id: _ } => {
                State { registered: true, name: name.clone(), email: email.clone(), ..state }
            }
            Event::UserEmailUpdated { email, user_id: _ } => State { email: email.clone(), ..state },
            Event::UserFollowed { followed_user_id, following, user_id: _ } => {
                state.follows.insert(followed_user_id.clone(), *following);
                state.followings = state.followings.max(*following);
                state
            }
            Event::UserUnfollowed { unfollowed_user_id, following: _, user_id: _ } => {
                state.follows.remove(unfollowed_user_id);
                state
            }
        }
    }

    fn decide(state: &State, command: &Command, context: &Context) -> Result<Vec<Event>, Refusal> {
        let Command { user_id, action } = command;
        let caller = context.actor.as_deref().and_then(id_of);
        if caller.as_deref() != Some(user_id.as_str()) {
            return Err(Refusal::NotYou);
        }
        if !state.registered && !matches!(action, Action::Register { .. }) {
            return Err(Refusal::Unknown);
        }
        match action {
            Action::Register { .. } if state.registered => Err(Refusal::Exists),
            Action::Register { name, email } => Ok(vec![Event::UserRegistered {
                user_id: user_id.clone(),
                name: name.clone(),
                email: email.clone(),
            }]),
            Action::UpdateEmail { email } if *email == state.email => Ok(Vec::new()),
            Action::UpdateEmail { email } => {
                Ok(vec![Event::UserEmailUpdated { user_id: user_id.clone(), email: email.clone() }])
            }
            Action::Follow { other } => follow(state, user_id, other),
            Action::Unfollow { other } => Ok(unfollow(state, user_id, other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use ledgerline::{fold, spec::given};
    use proptest::prelude::*;

    use super::*;

    fn by(actor: &str) -> Context {
        Context { at: Timestamp::UNIX_EPOCH, actor: Some(actor.into()) }
    }

    fn ada(action: Action) -> Command {
        Command { user_id: "ada".into(), action }
    }

    fn register() -> Action {
        Action::Register { name: "Ada".into(), email: "ada@example.com".into() }
    }

    fn registered() -> Event {
        Event::UserRegistered { user_id: "ada".into(), name: "Ada".into(), email: "ada@example.com".into() }
    }

    fn followed(other: &str, following: u64) -> Event {
        Event::UserFollowed { user_id: "ada".into(), followed_user_id: other.into(), following }
    }

    fn unfollowed(other: &str, following: u64) -> Event {
        Event::UserUnfollowed { user_id: "ada".into(), unfollowed_user_id: other.into(), following }
    }

    fn follow(other: &str) -> Command {
        ada(Action::Follow { other: other.into() })
    }

    fn unfollow(other: &str) -> Command {
        ada(Action::Unfollow { other: other.into() })
    }

    #[test]
    fn a_user_registers_once() {
        given::<User>([]).when(ada(register()), &by("ada")).then([registered()]);
        given::<User>([registered()]).when(ada(register()), &by("ada")).then_refused(&Refusal::Exists);
        given::<User>([]).when(follow("bob"), &by("ada")).then_refused(&Refusal::Unknown);
    }

    #[test]
    fn a_users_commands_are_nobody_elses() {
        for stranger in [by("eve"), Context { actor: None, ..by("ada") }] {
            for action in [register(), Action::Follow { other: "bob".into() }] {
                given::<User>([registered()]).when(ada(action), &stranger).then_refused(&Refusal::NotYou);
            }
        }
    }

    #[test]
    fn mails_go_where_the_user_says() {
        let elsewhere = Action::UpdateEmail { email: "ada@example.org".into() };
        let updated = Event::UserEmailUpdated { user_id: "ada".into(), email: "ada@example.org".into() };
        given::<User>([registered()]).when(ada(elsewhere.clone()), &by("ada")).then([updated.clone()]);
        given::<User>([registered(), updated]).when(ada(elsewhere), &by("ada")).then([]);
    }

    #[test]
    fn nobody_follows_twice_nor_themselves() {
        given::<User>([registered()]).when(follow("bob"), &by("ada")).then([followed("bob", 1)]);
        given::<User>([registered(), followed("bob", 1)]).when(follow("bob"), &by("ada")).then([]);
        given::<User>([registered()]).when(follow("ada"), &by("ada")).then_refused(&Refusal::Yourself);
    }

    #[test]
    fn a_following_ends_and_the_next_one_has_another_number() {
        let history = [registered(), followed("bob", 1), followed("cleo", 2)];
        given::<User>(history.clone()).when(unfollow("bob"), &by("ada")).then([unfollowed("bob", 1)]);
        given::<User>(history.clone()).when(unfollow("dora"), &by("ada")).then([]);
        let history = history.into_iter().chain([unfollowed("bob", 1)]);
        given::<User>(history).when(follow("bob"), &by("ada")).then([followed("bob", 3)]);
    }

    #[test]
    fn a_thousand_are_followed_and_one_more_is_refused() {
        let many = (1..=MAX_FOLLOWS as u64).map(|n| followed(&format!("u{n}"), n));
        let state =
            fold::<User>(User::initial(), &[registered()].into_iter().chain(many).collect::<Vec<_>>());
        assert_eq!(User::decide(&state, &follow("one-more"), &by("ada")), Err(Refusal::TooMany));
        assert_eq!(User::decide(&state, &follow("u1"), &by("ada")), Ok(vec![]));
        // With ids as long as Cognito's, the whole state stays below a tenth of an item.
        assert!(serde_json::to_vec(&state).unwrap().len() + MAX_FOLLOWS * 36 < 64_000);
    }

    #[test]
    fn an_id_is_the_subject_as_far_as_streams_can_be_named_like_it() {
        for (subject, id) in [
            ("2b6f0cc9-4e1f-4b0f-9d0e-1d8f5f6c7a10", Some("2b6f0cc9-4e1f-4b0f-9d0e-1d8f5f6c7a10")),
            ("auth0|5f7c", Some("auth0:7C5f7c")),
            ("ada@example.com", Some("ada:40example.com")),
            ("a:7C", Some("a:3A7C")),
            ("", None),
        ] {
            assert_eq!(id_of(subject).as_deref(), id, "{subject}");
        }
        assert!(id_of(&"x".repeat(128)).is_some());
        assert_eq!(id_of(&"x".repeat(129)), None);
    }

    proptest! {
        #[test]
        fn no_two_subjects_have_one_id(left in ".{1,30}", right in ".{1,30}") {
            if let (Some(a), Some(b)) = (id_of(&left), id_of(&right)) {
                prop_assert_eq!(a == b, left == right);
                prop_assert!(a.bytes().all(|b| b.is_ascii_alphanumeric() || b".-_:".contains(&b)));
            }
        }
    }
}
