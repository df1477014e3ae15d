//! Fields of request bodies, each with its own rules and its own words for when they are broken.

use serde::Deserialize;
use serde_json::Value;
use uuid::Uuid;

use crate::http::{HttpRequest, NOT_A_UUID, Problem, uuid};

/// Reads the body of a request that has nothing to say: none, or an empty object.
pub fn nothing(request: &HttpRequest) -> Result<(), Problem> {
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
pub struct Text<const MAX: usize>(pub String);

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
pub struct LongText<const MAX: usize>(pub String);

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
pub struct Number<const MIN: u32, const MAX: u32>(pub u32);

impl<const MIN: u32, const MAX: u32> TryFrom<Value> for Number<MIN, MAX> {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
        let number = number.filter(|number| (MIN..=MAX).contains(number)).map(Self);
        number.ok_or_else(|| format!("expected a whole number from {MIN} to {MAX}"))
    }
}

/// A UUID as 32 hexadecimal digits in five groups. Upper case is read and written in lower case, so that one thing
/// has one id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Value")]
pub struct Id(pub Uuid);

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
                let _ = Text::<140>::try_from(value.clone());
                let _ = LongText::<140>::try_from(value.clone());
                let _ = Number::<1, 5>::try_from(value.clone());
                let _ = Id::try_from(value);
            }
        }
    }
}
