//! Fields of request bodies, each with its own rules and its own words for when they are broken.

use domain::{
    account::MAX_MINOR_UNITS,
    link::{NOT_A_URL, normal_url},
};
use email_address::{EmailAddress, Options};
use lambda_kit::http::{HttpRequest, NOT_A_UUID, Problem, uuid};
use serde::Deserialize;
use serde_json::Value;
use uuid::Uuid;

/// An amount of money in minor units, from 1 to 2^53 - 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Value")]
pub(crate) struct Amount(pub(crate) i64);

impl TryFrom<Value> for Amount {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        // A fraction, an exponent or a number past 64 bits is no integer to the parser: it is refused, never rounded.
        value
            .as_i64()
            .filter(|amount| (1..=MAX_MINOR_UNITS).contains(amount))
            .map(Self)
            .ok_or_else(|| format!("an amount is a whole number of minor units from 1 to {MAX_MINOR_UNITS}"))
    }
}

/// Reads the body of a request that has nothing to say: none, or an empty object.
pub(crate) fn nothing(request: &HttpRequest) -> Result<(), Problem> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Nothing {}
    if request.body()?.is_empty() {
        return Ok(());
    }
    let Nothing {} = request.json()?;
    Ok(())
}

/// Text of 1 to `MAX` characters without control characters.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Value")]
pub(crate) struct Text<const MAX: usize>(pub(crate) String);

impl<const MAX: usize> TryFrom<Value> for Text<MAX> {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        let clean = |text: &&str| {
            (1..=MAX).contains(&text.chars().count())
                && !text.chars().any(|c| c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}'))
                && text.trim() == *text
        };
        value.as_str().filter(clean).map(|text| Self(text.to_owned())).ok_or_else(|| {
            format!("expected text of 1 to {MAX} characters, without control characters or outer spaces")
        })
    }
}

/// Text of up to `MAX` characters, which may be none, in any number of lines.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Value")]
pub(crate) struct LongText<const MAX: usize>(pub(crate) String);

impl<const MAX: usize> TryFrom<Value> for LongText<MAX> {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        let clean = |text: &&str| {
            text.chars().count() <= MAX
                && !text.chars().any(|c| {
                    c.is_control() && !matches!(c, '\n' | '\t') || matches!(c, '\u{fffe}' | '\u{ffff}')
                })
        };
        value.as_str().filter(clean).map(|text| Self(text.to_owned())).ok_or_else(|| {
            format!(
                "expected text of up to {MAX} characters, without control characters but line breaks and tabs"
            )
        })
    }
}

/// A whole number from `MIN` to `MAX`. The default, where there is one, is 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Value")]
pub(crate) struct Number<const MIN: u32, const MAX: u32>(pub(crate) u32);

impl<const MIN: u32, const MAX: u32> TryFrom<Value> for Number<MIN, MAX> {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
        let number = number.filter(|number| (MIN..=MAX).contains(number)).map(Self);
        number.ok_or_else(|| format!("expected a whole number from {MIN} to {MAX}"))
    }
}

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

/// An ISO 4217 code.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Value")]
pub(crate) struct Currency(pub(crate) String);

impl TryFrom<Value> for Currency {
    type Error = &'static str;

    fn try_from(value: Value) -> Result<Self, Self::Error> {
        let capitals = |code: &&str| code.len() == 3 && code.bytes().all(|b| b.is_ascii_uppercase());
        let code = value.as_str().filter(capitals).map(|code| Self(code.to_owned()));
        code.ok_or("a currency is three capital letters, such as EUR")
    }
}

/// A UUID as 32 hexadecimal digits in five groups. Upper case is read and written in lower case, so that one account
/// has one id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Value")]
pub(crate) struct Id(pub(crate) Uuid);

impl TryFrom<Value> for Id {
    type Error = &'static str;

    fn try_from(value: Value) -> Result<Self, Self::Error> {
        value.as_str().and_then(uuid).map(Self).ok_or(NOT_A_UUID)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn amounts_are_whole_and_in_range() {
        for good in [json!(1), json!(5000), json!(9_007_199_254_740_991_i64)] {
            assert!(Amount::try_from(good.clone()).is_ok(), "{good}");
        }
        for text in [
            "0",
            "-1",
            "1.5",
            "1.0",
            "1e3",
            "9007199254740992",
            "18446744073709551616",
            "\"1\"",
            "null",
            "true",
        ] {
            assert!(serde_json::from_str::<Amount>(text).is_err(), "{text}");
        }
    }

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

    #[test]
    fn numbers_are_whole_and_in_range() {
        for (value, valid) in [
            (json!(1), true),
            (json!(5), true),
            (json!(0), false),
            (json!(6), false),
            (json!(-1), false),
            (json!(1.0), false),
            (json!("1"), false),
            (json!(4_294_967_297_u64), false),
        ] {
            assert_eq!(Number::<1, 5>::try_from(value.clone()).is_ok(), valid, "{value}");
        }
    }

    #[test]
    fn long_text_may_have_lines_and_may_be_none() {
        for (text, valid) in
            [("", true), ("a\n\tb", true), ("a\rb", false), ("\u{7}", false), ("abcdef", false)]
        {
            assert_eq!(LongText::<5>::try_from(json!(text)).is_ok(), valid, "{text:?}");
        }
    }

    #[test]
    fn ids_have_one_spelling() {
        let Id(id) = Id::try_from(json!("163082D2-B005-45D7-9EB6-AA1F83EFD55D")).unwrap();
        assert_eq!(id.to_string(), "163082d2-b005-45d7-9eb6-aa1f83efd55d");
        for bad in
            ["", "1", "163082d2b00545d79eb6aa1f83efd55d", "{163082d2-b005-45d7-9eb6-aa1f83efd55d}", "../x"]
        {
            assert!(Id::try_from(json!(bad)).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn no_json_makes_a_field_panic(text in ".*", number in any::<f64>()) {
            for value in [json!(text), json!(number)] {
                let _ = Amount::try_from(value.clone());
                let _ = Text::<140>::try_from(value.clone());
                let _ = Currency::try_from(value.clone());
                let _ = LongText::<140>::try_from(value.clone());
                let _ = Number::<1, 5>::try_from(value.clone());
                let _ = Email::try_from(value.clone());
                let _ = WebUrl::try_from(value.clone());
                let _ = Id::try_from(value);
            }
        }
    }
}
