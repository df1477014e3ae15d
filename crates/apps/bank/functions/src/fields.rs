//! Fields of request bodies that only the bank has, each with its own rules and its own words for when they are broken.

use bank::account::MAX_MINOR_UNITS;
use serde::Deserialize;
use serde_json::Value;

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

    proptest! {
        #[test]
        fn no_json_makes_a_field_panic(text in ".*", number in any::<f64>()) {
            for value in [json!(text), json!(number)] {
                let _ = Amount::try_from(value.clone());
                let _ = Currency::try_from(value);
            }
        }
    }
}
