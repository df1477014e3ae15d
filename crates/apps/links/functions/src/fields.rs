//! Fields of request bodies that only this application has, each with its own rules and its own words for when they are broken.

use email_address::{EmailAddress, Options};
use links::link::{NOT_A_URL, normal_url};
use serde::Deserialize;
use serde_json::Value;

/// An address for mails (RFC 5321), without a name around it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Value")]
pub(crate) struct Email(pub(crate) String);

impl TryFrom<Value> for Email {
    type Error = &'static str;

    fn try_from(value: Value) -> Result<Self, Self::Error> {
        let options = Options::default().without_display_text().without_domain_literal().with_required_tld();
        let valid = |text: &&str| text.is_ascii() && EmailAddress::parse_with_options(text, options).is_ok();
        let email = value.as_str().filter(valid).map(|text| Self(text.to_owned()));
        email.ok_or("an address for mails is like ada@example.com")
    }
}

/// A URL of the web, in its one spelling.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Value")]
pub(crate) struct WebUrl(pub(crate) String);

impl TryFrom<Value> for WebUrl {
    type Error = &'static str;

    fn try_from(value: Value) -> Result<Self, Self::Error> {
        let url = value.as_str().and_then(normal_url).map(Self);
        url.ok_or(NOT_A_URL)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

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
            assert_eq!(Email::try_from(json!(text)).is_ok(), valid, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_json_makes_a_field_panic(text in ".*", number in any::<f64>()) {
            for value in [json!(text), json!(number)] {
                let _ = Email::try_from(value.clone());
                let _ = WebUrl::try_from(value);
            }
        }
    }
}
