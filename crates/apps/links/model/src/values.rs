//! The values of the commands of users and links. A value is checked when it is built, so no
//! command can carry an invalid one.

use email_address::{EmailAddress, Options};
use ledgerline::{Number, StreamId, Text};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use schemars::JsonSchema;
use serde::Deserialize;
use url::Url;

/// The longest URL, in bytes: less than the longest partition key.
pub const MAX_URL: usize = 2_000;

/// The most tags that a link can have.
pub const MAX_TAGS: usize = 20;

ledgerline::value_object! {
    /// The id of a user. It is derived from the subject of the caller's token, so that no other
    /// caller can send the user's commands.
    pub struct UserId(String),
    |id| {
        StreamId::new("user", &id).ok()?;
        UserId::encoded(&UserId::subject(&id)?)
    },
    "an id has 1 to 128 characters of A-Z a-z 0-9 . _ -, and a colon only before two hexadecimal \
     digits",
    {
        "minLength": 1,
        "maxLength": 128,
        "pattern": "^(?:[A-Za-z0-9._-]|:[0-9A-Fa-f]{2})+$",
        "examples": ["ada"],
    }
}

/// The bytes that a user's id encodes: all but ASCII letters, digits, dots, dashes and underscores.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'.').remove(b'-').remove(b'_');

impl UserId {
    /// Returns the id of the user who signs in as this subject, unless the subject is empty or the
    /// id would be too long. The id is the subject itself. Every byte that is no ASCII letter,
    /// digit, dot, dash or underscore becomes a colon and two hexadecimal digits; so do the dots of
    /// `.` and `..`, which have a meaning in paths. No two subjects have the same id.
    #[must_use]
    pub fn from_subject(subject: &str) -> Option<Self> {
        Self::new(Self::encoded(subject)?).ok()
    }

    fn encoded(subject: &str) -> Option<String> {
        let encoded = utf8_percent_encode(subject, ENCODED).to_string().replace('%', ":");
        let id = if matches!(subject, "." | "..") { subject.replace('.', ":2E") } else { encoded };
        StreamId::new("user", &id).is_ok().then_some(id)
    }

    /// Returns the subject of an id in any spelling, if the id has one. `auth0:7c1` and `auth0:7C1`
    /// are one user. Otherwise a caller could follow a user who does not exist.
    fn subject(id: &str) -> Option<String> {
        let is_escape = |rest: &str| {
            rest.len() >= 2 && rest.bytes().take(2).all(|byte| byte.is_ascii_hexdigit())
        };
        let escapes = id.split(':').skip(1);
        let subject = percent_decode_str(&id.replace(':', "%")).decode_utf8().ok()?.into_owned();
        escapes.into_iter().all(is_escape).then_some(subject)
    }
}

ledgerline::value_object! {
    /// An address for mails (RFC 5321), without a name around it.
    pub struct Email(String),
    |text| {
        let options = Options::default().without_display_text().without_domain_literal().with_required_tld();
        (text.is_ascii() && EmailAddress::parse_with_options(&text, options).is_ok()).then_some(text)
    },
    "an address for mails is like ada@example.com",
    { "format": "email", "examples": ["ada@example.com"] }
}

ledgerline::value_object! {
    /// A URL of the web in its one spelling (WHATWG URL Standard), without a user name or a
    /// password.
    pub struct WebUrl(String),
    |text| {
        let url = Url::parse(&text).ok()?;
        let web = matches!(url.scheme(), "http" | "https") && url.has_host();
        let url = (web && url.username().is_empty() && url.password().is_none()).then(|| url.to_string())?;
        (url.len() <= MAX_URL).then_some(url)
    },
    format!("expected a URL with http or https, of up to {MAX_URL} bytes when it is encoded, and without a password"),
    { "format": "uri", "minLength": 1, "maxLength": MAX_URL, "examples": ["https://example.com/"] }
}

/// A rating from 1 to 5.
pub type Rating = Number<1, 5>;

/// The name of a user.
pub type Name = Text<200>;

/// The title that a user gives a link.
pub type Title = Text<200>;

/// A word by which a user sorts links.
pub type Tag = Text<50>;

/// Up to [`MAX_TAGS`] tags.
#[derive(Debug, Clone, Default, PartialEq, Eq, JsonSchema, Deserialize)]
#[serde(try_from = "Vec<Tag>")]
#[schemars(extend("maxItems" = MAX_TAGS))]
pub struct Tags(Vec<Tag>);

impl Tags {
    /// The tags.
    #[must_use]
    pub fn get(&self) -> &[Tag] {
        &self.0
    }
}

impl TryFrom<Vec<Tag>> for Tags {
    type Error = String;

    fn try_from(tags: Vec<Tag>) -> Result<Self, String> {
        if tags.len() > MAX_TAGS {
            Err(format!("a link has up to {MAX_TAGS} tags"))
        } else {
            Ok(Self(tags))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn addresses_are_plain_ones() {
        for (text, valid) in [
            ("ada@example.com", true),
            ("ada.l+news@mail.example.com", true),
            ("ada", false),
            ("ada@", false),
            ("ada@localhost", false),
            ("Ada <ada@example.com>", false),
            ("ada@example.com, eve@example.com", false),
            ("ada@example.com\r\nBcc: eve@example.com", false),
            ("äda@example.com", false),
        ] {
            assert_eq!(Email::new(text).is_ok(), valid, "{text}");
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
            assert_eq!(WebUrl::new(text).ok().map(WebUrl::into_inner).as_deref(), url, "{text}");
        }
        let long =
            |length: usize| WebUrl::new(format!("https://example.com/{}", "x".repeat(length - 20)));
        assert!(long(MAX_URL).is_ok() && long(MAX_URL + 1).is_err());
    }

    #[test]
    fn twenty_tags_are_accepted_and_one_more_is_refused() {
        let tags = |count: usize| Tags::try_from(vec![Tag::new("a").unwrap(); count]);
        assert!(tags(MAX_TAGS).is_ok());
        assert_eq!(tags(MAX_TAGS + 1).unwrap_err(), "a link has up to 20 tags");
    }

    #[test]
    fn an_id_is_the_subject_with_other_bytes_encoded() {
        for (subject, id) in [
            ("2b6f0cc9-4e1f-4b0f-9d0e-1d8f5f6c7a10", Some("2b6f0cc9-4e1f-4b0f-9d0e-1d8f5f6c7a10")),
            ("auth0|5f7c", Some("auth0:7C5f7c")),
            ("ada@example.com", Some("ada:40example.com")),
            ("a:7C", Some("a:3A7C")),
            (".", Some(":2E")),
            ("..", Some(":2E:2E")),
            ("...", Some("...")),
            ("", None),
        ] {
            assert_eq!(
                UserId::from_subject(subject).map(UserId::into_inner).as_deref(),
                id,
                "{subject}"
            );
        }
        assert!(UserId::from_subject(&"x".repeat(128)).is_some());
        assert_eq!(UserId::from_subject(&"x".repeat(129)), None);
    }

    #[test]
    fn an_id_has_one_spelling_and_one_subject() {
        for (text, id) in [
            ("auth0:7c5f7c", Some("auth0:7C5f7c")),
            ("auth0:7C5f7c", Some("auth0:7C5f7c")),
            ("a:41", Some("aA")),
            (":2e.", Some(":2E:2E")),
            ("..", None),
            ("auth0:zz", None),
            ("auth0:7", None),
            ("a:", None),
            ("a:ff", None),
            ("auth0|5f7c", None),
        ] {
            assert_eq!(UserId::new(text).ok().map(UserId::into_inner).as_deref(), id, "{text}");
        }
    }

    proptest! {
        #[test]
        fn the_values_panic_on_no_text(text in ".*") {
            let _ = (Email::new(text.clone()), WebUrl::new(text.clone()), UserId::new(text));
        }

        #[test]
        fn no_two_subjects_have_one_id(left in ".{1,30}", right in ".{1,30}") {
            if let (Some(a), Some(b)) = (UserId::from_subject(&left), UserId::from_subject(&right)) {
                prop_assert_eq!(a == b, left == right);
                prop_assert!(a.get().bytes().all(|b| b.is_ascii_alphanumeric() || b".-_:".contains(&b)));
            }
        }
    }
}
