//! A link, as one user rates it: from 1 to 5, with tags, a title and an image. One command may
//! change several of these, in one commit. The model follows the project Beenion, in which the id
//! is also derived from the user and the URL.

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use ledgerline::{Aggregate, Context, Refusal};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::values::{Rating, Tags, Title, UserId, WebUrl};

// --- Id ------------------------------------------------------------------------------------------

/// Returns the id of a link of one user: a hash of both, in the alphabet of stream names.
#[must_use]
pub fn id(user_id: &str, link_url: &str) -> String {
    let mut hash = Sha256::new();
    // No user id has a line break, so no two pairs give the same text.
    hash.update(format!("{user_id}\n{link_url}"));
    BASE64_URL_SAFE_NO_PAD.encode(hash.finalize())
}

// --- Events --------------------------------------------------------------------------------------

ledgerline::events! {
    /// The events of a user's link. Each event names the user and the link, because the link's id,
    /// a hash, reveals neither.
    pub enum Event {
        /// The user rated the link for the first time.
        LinkCreated: 1 { user_id: String, link_url: String },
        /// The user rated the link, from 1 to 5. The event carries the rating before, so that a sum
        /// over all users needs no fold.
        LinkRated: 1 { user_id: String, link_url: String, rating: u8, previous: Option<u8> },
        /// The user replaced all tags of the link by these.
        LinkTagged: 1 { user_id: String, link_url: String, tags: Vec<String> },
        /// The user gave the link a title.
        LinkTitleUpdated: 1 { user_id: String, link_url: String, title: String },
        /// The user gave the link an image, by its URL.
        LinkImageUpdated: 1 { user_id: String, link_url: String, image: String },
    }
}

// --- State ---------------------------------------------------------------------------------------

/// The state of a link: the user's rating, tags, title and image.
#[derive(Debug, Clone, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct State {
    /// The user and the link, if the user has rated it.
    pub created: Option<Created>,
    /// The rating.
    pub rating: Option<u8>,
    /// The tags.
    pub tags: Vec<String>,
    /// The title.
    pub title: Option<String>,
    /// The URL of the image.
    pub image: Option<String>,
}

/// The user and the link of a rating. The link's id, a hash, reveals neither.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Created {
    /// The user who rates.
    pub user_id: String,
    /// The link's URL.
    pub link_url: String,
}

// --- Decisions -----------------------------------------------------------------------------------

/// A command to a link: a rating, and optionally new tags, a title or an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// The user who rates.
    pub user_id: UserId,
    /// The link.
    pub link_url: WebUrl,
    /// The rating, from 1 to 5.
    pub rating: Rating,
    /// The title, if it changes.
    pub title: Option<Title>,
    /// The URL of the image, if it changes.
    pub image: Option<WebUrl>,
    /// All tags, if they change.
    pub tags: Option<Tags>,
}

ledgerline::refusals! {
    /// Callers act only for themselves.
    NOT_YOU = forbidden("not-you", "this is another user's to do");
}

/// The link aggregate.
#[derive(Debug)]
pub struct Link;

impl Aggregate for Link {
    const CATEGORY: &'static str = "link";
    const STATE_SCHEMA: u32 = 1;
    const REFUSALS: &'static [Refusal] = REFUSALS;

    type State = State;
    type Event = Event;
    type Command = Command;

    fn evolve(state: State, event: &Event) -> State {
        match event {
            Event::LinkCreated { user_id, link_url } => {
                let user_id = user_id.clone();
                let link_url = link_url.clone();
                State { created: Some(Created { user_id, link_url }), ..state }
            }
            Event::LinkRated { rating, .. } => State { rating: Some(*rating), ..state },
            Event::LinkTagged { tags, .. } => State { tags: tags.clone(), ..state },
            Event::LinkTitleUpdated { title, .. } => State { title: Some(title.clone()), ..state },
            Event::LinkImageUpdated { image, .. } => State { image: Some(image.clone()), ..state },
        }
    }

    /// A value that the link has already is no change, and creates no event.
    fn decide(state: &State, command: &Command, context: &Context) -> Result<Vec<Event>, Refusal> {
        let Command { user_id, link_url, rating, title, image, tags } = command;
        if context.actor.as_deref().and_then(UserId::from_subject).as_ref() != Some(user_id) {
            return Err(NOT_YOU);
        }
        let whose = || (user_id.to_string(), link_url.to_string());
        let mut events = Vec::new();
        if state.created.is_none() {
            let (user_id, link_url) = whose();
            events.push(Event::LinkCreated { user_id, link_url });
        }
        // A rating is from 1 to 5, so it always fits.
        let rating = u8::try_from(*rating.get()).unwrap_or(u8::MAX);
        if state.rating != Some(rating) {
            let (user_id, link_url) = whose();
            events.push(Event::LinkRated { user_id, link_url, rating, previous: state.rating });
        }
        let tags = tags
            .as_ref()
            .map(|tags| tags.get().iter().map(ToString::to_string).collect::<Vec<_>>());
        if let Some(tags) = tags.filter(|tags| *tags != state.tags) {
            let (user_id, link_url) = whose();
            events.push(Event::LinkTagged { user_id, link_url, tags });
        }
        if let Some(title) =
            title.as_ref().map(Title::get).filter(|title| state.title.as_ref() != Some(*title))
        {
            let (user_id, link_url) = whose();
            events.push(Event::LinkTitleUpdated { user_id, link_url, title: title.clone() });
        }
        if let Some(image) =
            image.as_ref().map(WebUrl::get).filter(|image| state.image.as_ref() != Some(*image))
        {
            let (user_id, link_url) = whose();
            events.push(Event::LinkImageUpdated { user_id, link_url, image: image.clone() });
        }
        Ok(events)
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use ledgerline::spec::{given, live, valid};
    use proptest::prelude::*;

    use super::*;
    use crate::values::{MAX_TAGS, Tag};

    const URL: &str = "https://example.com/";

    fn by(actor: &str) -> Context {
        Context { at: Timestamp::UNIX_EPOCH, actor: Some(actor.into()) }
    }

    fn rate(rating: u8) -> Command {
        let user_id = valid("ada");
        let link_url = valid(URL);
        let rating = valid(rating);
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
    fn the_first_rating_creates_the_link_in_one_commit() {
        given::<Link>([]).when(rate(4), &by("ada")).then([created(), rated(4, None)]);
        let (user_id, link_url) = whose();
        let all = Command {
            title: Some(valid("Example")),
            image: Some(valid("https://example.com/i.png")),
            tags: Some(vec![valid("example")].try_into().unwrap()),
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
            Event::LinkImageUpdated {
                user_id,
                link_url,
                image: "https://example.com/i.png".into(),
            },
        ]);
    }

    #[test]
    fn another_rating_carries_the_one_before_and_the_same_rating_changes_nothing() {
        let history = [created(), rated(4, None)];
        given::<Link>(history.clone()).when(rate(1), &by("ada")).then([rated(1, Some(4))]);
        given::<Link>(history).when(rate(4), &by("ada")).then([]);
    }

    #[test]
    fn no_caller_rates_for_another_user() {
        for stranger in [by("eve"), Context { actor: None, ..by("ada") }] {
            given::<Link>([]).when(rate(4), &stranger).then_refused(&NOT_YOU);
        }
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

    proptest! {
        /// For all commands of all callers, ratings are from 1 to 5, each carries the one before,
        /// and there are at most [`MAX_TAGS`](crate::values::MAX_TAGS) tags.
        #[test]
        fn ratings_never_leave_their_range(
            said in prop::collection::vec(
                (any::<i64>(), 1..=5_i64, any::<bool>(), ".*", prop::collection::vec("[a-z]{0,3}|.*", 0..25), any::<bool>()),
                1..30,
            ),
        ) {
            let commands = said.into_iter().filter_map(|(any, good, wild, text, tags, eve)| {
                let tags = tags.into_iter().map(Tag::new).collect::<Result<Vec<_>, _>>().ok();
                let command = Command {
                    rating: Rating::new(if wild { any } else { good }).ok()?,
                    title: Title::new(text.clone()).ok(),
                    image: WebUrl::new(text).ok(),
                    tags: tags.and_then(|tags| Tags::try_from(tags).ok()),
                    ..rate(1)
                };
                Some((command, by(if eve { "eve" } else { "ada" })))
            });
            let (_, events) = live::<Link>(commands);
            let mut last = None;
            for event in &events {
                match event {
                    Event::LinkRated { rating, previous, .. } => {
                        prop_assert!((1..=5).contains(rating) && *previous == last && last != Some(*rating));
                        last = Some(*rating);
                    }
                    Event::LinkTagged { tags, .. } => prop_assert!(tags.len() <= MAX_TAGS),
                    Event::LinkCreated { .. } | Event::LinkTitleUpdated { .. } | Event::LinkImageUpdated { .. } => {}
                }
            }
        }
    }
}
