//! A link, as one user sees it: rated from 1 to 5, tagged, with a title and an image. One command may change several of
//! these, in one commit. After the project Beenion; like there, the id is made of the user and the URL.

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use ledgerline::{Aggregate, Context, EventType, Rejection, RejectionKind};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use url::Url;

use crate::user::id_of;

// --- Id ---------------------------------------------------------------------------------------------------------

/// Streams are named `link-<link id>`.
pub const CATEGORY: &str = "link";

/// The id of a link as one user sees it: a hash of both, in the alphabet of stream names.
#[must_use]
pub fn id(user_id: &str, link_url: &str) -> String {
    let mut hash = Sha256::new();
    // No user id has a line break, so that no two pairs give one text.
    hash.update(format!("{user_id}\n{link_url}"));
    BASE64_URL_SAFE_NO_PAD.encode(hash.finalize())
}

/// The longest URL, in bytes: less than the longest partition key.
pub const MAX_URL: usize = 2_000;

/// What is said to a URL that is none.
pub const NOT_A_URL: &str =
    "expected a URL with http or https, of up to 2000 bytes when it is encoded, and without a password";

/// The one spelling of a URL (WHATWG URL Standard), if it is one of the web's, without a password in it.
#[must_use]
pub fn normal_url(text: &str) -> Option<String> {
    let url = Url::parse(text).ok()?;
    let web = matches!(url.scheme(), "http" | "https") && url.has_host();
    let url = (web && url.username().is_empty() && url.password().is_none()).then(|| url.to_string())?;
    (url.len() <= MAX_URL).then_some(url)
}

// --- Events -----------------------------------------------------------------------------------------------------

/// What a user did with a link. These types are the storage format: change a shape only together with an upcaster in
/// [`Link::EVENTS`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", content = "data", rename_all_fields = "camelCase")]
pub enum Event {
    /// The user has something to say about it from now on.
    LinkCreated {
        /// Who.
        user_id: String,
        /// About what.
        link_url: String,
    },
    /// The user rates it.
    LinkRated {
        /// Who.
        user_id: String,
        /// What.
        link_url: String,
        /// From 1 to 5.
        rating: u8,
        /// What the same user's rating was before, so that a sum over all users can be kept without a fold.
        previous: Option<u8>,
    },
    /// The user tags it.
    LinkTagged {
        /// Who.
        user_id: String,
        /// What.
        link_url: String,
        /// All tags, from now on.
        tags: Vec<String>,
    },
    /// The user gives it a title.
    LinkTitleUpdated {
        /// Who.
        user_id: String,
        /// What.
        link_url: String,
        /// The title from now on.
        title: String,
    },
    /// The user gives it an image.
    LinkImageUpdated {
        /// Who.
        user_id: String,
        /// What.
        link_url: String,
        /// URL of the image from now on.
        image: String,
    },
}

// --- State ------------------------------------------------------------------------------------------------------

/// What the decisions need.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct State {
    /// Whether the user said anything about it.
    pub created: bool,
    /// The rating.
    pub rating: Option<u8>,
    /// The tags.
    pub tags: Vec<String>,
    /// The title.
    pub title: Option<String>,
    /// URL of the image.
    pub image: Option<String>,
}

// --- Decisions --------------------------------------------------------------------------------------------------

/// Rate a link, and say more about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// Who.
    pub user_id: String,
    /// What, in its one spelling.
    pub link_url: String,
    /// From 1 to 5.
    pub rating: u8,
    /// The title, if it is to be another one.
    pub title: Option<String>,
    /// URL of the image, if it is to be another one.
    pub image: Option<String>,
    /// All tags, if they are to be others.
    pub tags: Option<Vec<String>>,
}

/// Why the answer is no.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It is another user's.
    #[error("this is another user's to do")]
    NotYou,
}

impl Rejection for Refusal {
    fn kind(&self) -> RejectionKind {
        match self {
            Self::NotYou => RejectionKind::Forbidden,
        }
    }

    fn code(&self) -> &'static str {
        match self {
            Self::NotYou => "not-you",
        }
    }
}

/// The link aggregate.
#[derive(Debug)]
pub struct Link;

impl Aggregate for Link {
    const CATEGORY: &'static str = CATEGORY;
    const STATE_SCHEMA: u32 = 1;
    const EVENTS: &'static [EventType] = &[
        EventType::new("LinkCreated"),
        EventType::new("LinkRated"),
        EventType::new("LinkTagged"),
        EventType::new("LinkTitleUpdated"),
        EventType::new("LinkImageUpdated"),
    ];

    type State = State;
    type Event = Event;
    type Command = Command;
    type Rejection = Refusal;

    fn initial() -> State {
        State::default()
    }

    fn evolve(state: State, event: &Event) -> State {
        match event {
            Event::LinkCreated { user_id: _, link_url: _ } => State { created: true, ..state },
            Event::LinkRated { rating, previous: _, user_id: _, link_url: _ } => {
                State { rating: Some(*rating), ..state }
            }
            Event::LinkTagged { tags, user_id: _, link_url: _ } => State { tags: tags.clone(), ..state },
            Event::LinkTitleUpdated { title, user_id: _, link_url: _ } => {
                State { title: Some(title.clone()), ..state }
            }
            Event::LinkImageUpdated { image, user_id: _, link_url: _ } => {
                State { image: Some(image.clone()), ..state }
            }
        }
    }

    /// What it is like already is no change.
    fn decide(state: &State, command: &Command, context: &Context) -> Result<Vec<Event>, Refusal> {
        let Command { user_id, link_url, rating, title, image, tags } = command;
        if context.actor.as_deref().and_then(id_of).as_ref() != Some(user_id) {
            return Err(Refusal::NotYou);
        }
        let whose = || (user_id.clone(), link_url.clone());
        let mut events = Vec::new();
        if !state.created {
            let (user_id, link_url) = whose();
            events.push(Event::LinkCreated { user_id, link_url });
        }
        if state.rating != Some(*rating) {
            let (user_id, link_url) = whose();
            events.push(Event::LinkRated { user_id, link_url, rating: *rating, previous: state.rating });
        }
        if let Some(tags) = tags.as_ref().filter(|tags| **tags != state.tags) {
            let (user_id, link_url) = whose();
            events.push(Event::LinkTagged { user_id, link_url, tags: tags.clone() });
        }
        if let Some(title) = title.as_ref().filter(|title| state.title.as_ref() != Some(*title)) {
            let (user_id, link_url) = whose();
            events.push(Event::LinkTitleUpdated { user_id, link_url, title: title.clone() });
        }
        if let Some(image) = image.as_ref().filter(|image| state.image.as_ref() != Some(*image)) {
            let (user_id, link_url) = whose();
            events.push(Event::LinkImageUpdated { user_id, link_url, image: image.clone() });
        }
        Ok(events)
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use ledgerline::spec::given;
    use proptest::prelude::*;

    use super::*;

    const URL: &str = "https://example.com/";

    fn by(actor: &str) -> Context {
        Context { at: Timestamp::UNIX_EPOCH, actor: Some(actor.into()) }
    }

    fn rate(rating: u8) -> Command {
        let (user_id, link_url) = whose();
        Command { user_id, link_url, rating, title: None, image: None, tags: None }
    }

    fn whose() -> (String, String) {
        ("ada".into(), URL.into())
    }

    fn created() -> Event {
        let (user_id, link_url) = whose();
        Event::LinkCreated { user_id, link_url }
    }

    fn rated(rating: u8, previous: Option<u8>) -> Event {
        let (user_id, link_url) = whose();
        Event::LinkRated { user_id, link_url, rating, previous }
    }

    #[test]
    fn the_first_rating_creates_the_link_and_one_commit_says_all_of_it() {
        given::<Link>([]).when(rate(4), &by("ada")).then([created(), rated(4, None)]);
        let (user_id, link_url) = whose();
        let all = Command {
            title: Some("Example".into()),
            image: Some("https://example.com/i.png".into()),
            tags: Some(vec!["example".into()]),
            ..rate(4)
        };
        given::<Link>([]).when(all.clone(), &by("ada")).then([
            created(),
            rated(4, None),
            Event::LinkTagged {
                user_id: user_id.clone(),
                link_url: link_url.clone(),
                tags: vec!["example".into()],
            },
            Event::LinkTitleUpdated {
                user_id: user_id.clone(),
                link_url: link_url.clone(),
                title: "Example".into(),
            },
            Event::LinkImageUpdated { user_id, link_url, image: "https://example.com/i.png".into() },
        ]);
    }

    #[test]
    fn rating_again_tells_the_rating_before_and_the_same_rating_changes_nothing() {
        let history = [created(), rated(4, None)];
        given::<Link>(history.clone()).when(rate(1), &by("ada")).then([rated(1, Some(4))]);
        given::<Link>(history).when(rate(4), &by("ada")).then([]);
    }

    #[test]
    fn nobody_rates_for_somebody_else() {
        for stranger in [by("eve"), Context { actor: None, ..by("ada") }] {
            given::<Link>([]).when(rate(4), &stranger).then_refused(&Refusal::NotYou);
        }
    }

    #[test]
    fn a_link_has_one_spelling() {
        for (text, url) in [
            ("https://example.com", Some("https://example.com/")),
            ("HTTPS://EXAMPLE.com:443/a/../b?q=1#f", Some("https://example.com/b?q=1#f")),
            ("http://bücher.example/ä", Some("http://xn--bcher-kva.example/%C3%A4")),
            ("https://ada:secret@example.com/", None),
            ("ftp://example.com/", None),
            ("javascript:alert(1)", None),
            ("/relative", None),
            ("", None),
        ] {
            assert_eq!(normal_url(text).as_deref(), url, "{text}");
        }
        let long = |length: usize| format!("https://example.com/{}", "x".repeat(length - 20));
        assert!(normal_url(&long(MAX_URL)).is_some());
        assert_eq!(normal_url(&long(MAX_URL + 1)), None);
    }

    proptest! {
        #[test]
        fn no_two_pairs_of_user_and_link_have_one_id(
            a in ("[a-z:]{1,3}", "[a-z:]{1,3}"),
            b in ("[a-z:]{1,3}", "[a-z:]{1,3}"),
        ) {
            prop_assert_eq!(id(&a.0, &a.1) == id(&b.0, &b.1), a == b);
        }
    }
}
