//! Value objects: types that cannot hold a value that breaks their rule. Commands consist of them.
//! So HTTP, process managers and imports can only send values that the domain can decide on, and
//! every limit is in one place.
//!
//! Events and states hold plain values: a rule that is tightened later must not make an old event
//! unreadable.

use std::borrow::Cow;

use icu_normalizer::ComposingNormalizerBorrowed;
#[doc(hidden)]
pub use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, de::Error as _};
#[doc(hidden)]
pub use serde_json::{Value, json};

/// The error for a plain value that a value object cannot be made from. It holds the text of the
/// rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Invalid(pub Cow<'static, str>);

/// A type that is made from a plain value by a rule.
///
/// [`value_object!`](crate::value_object) declares one; [`Text`], [`LongText`], [`Number`] and
/// [`Id`] are declared here.
pub trait ValueObject: Sized {
    /// The type of the plain value.
    type Plain: Plain;

    /// The error text for any other value: "an amount is a whole number from 1 to 10".
    fn expectation() -> Cow<'static, str>;

    /// Makes the value object, in its only spelling; `None` if the rule does not allow the plain
    /// value.
    fn read(plain: Self::Plain) -> Option<Self>;

    /// The rule in the words of JSON Schema, such as `{"pattern": "^[A-Z]{3}$"}`. The contract of
    /// the HTTP API shows it. An empty object stands for a rule that JSON Schema cannot express.
    fn rule() -> Value {
        json!({})
    }
}

/// A value of JSON that a value object can be made from.
pub trait Plain: Sized {
    /// The name of the type in JSON Schema.
    const TYPE: &'static str;

    /// Returns the value, if it is of this type: a text is not a number, and 1.0 is not a whole
    /// number.
    fn from_json(value: Value) -> Option<Self>;
}

impl Plain for String {
    const TYPE: &'static str = "string";

    fn from_json(value: Value) -> Option<Self> {
        if let Value::String(text) = value { Some(text) } else { None }
    }
}

impl Plain for i64 {
    const TYPE: &'static str = "integer";

    /// Refuses a fraction, an exponent or a number outside the range of `i64`, and never rounds it:
    /// the parser does not read it as an integer.
    fn from_json(value: Value) -> Option<Self> {
        value.as_i64()
    }
}

/// Makes a value object from a plain value.
pub fn try_new<V: ValueObject>(plain: impl Into<V::Plain>) -> Result<V, Invalid> {
    V::read(plain.into()).ok_or_else(|| Invalid(V::expectation()))
}

/// Reads a value object from sent data.
///
/// # Errors
/// The error text of its rule, for any fault of the data.
pub fn deserialize<'de, V: ValueObject, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<V, D::Error> {
    let plain = V::Plain::from_json(Value::deserialize(deserializer)?);
    plain.and_then(V::read).ok_or_else(|| D::Error::custom(V::expectation()))
}

/// Returns the schema of a value object: its plain type, its rule, and the text of the rule.
pub fn schema<V: ValueObject>() -> Schema {
    let mut schema =
        schemars::json_schema!({ "type": V::Plain::TYPE, "description": V::expectation() });
    if let Value::Object(rule) = V::rule() {
        schema.ensure_object().extend(rule);
    }
    schema
}

/// Declares a value object: its name, its plain type, the rule, and the error text for values that
/// break it. The rule in the words of JSON Schema may follow, for the contract of the HTTP API.
///
/// The rule returns the value in its only spelling, or `None`.
///
/// ```
/// ledgerline::value_object! {
///     /// An ISO 4217 code.
///     pub struct Currency(String),
///     |code: String| (code.len() == 3 && code.bytes().all(|b| b.is_ascii_uppercase())).then_some(code),
///     "a currency is three capital letters, such as EUR",
///     { "pattern": "^[A-Z]{3}$" }
/// }
///
/// assert_eq!(Currency::new("EUR").unwrap().get(), "EUR");
/// assert_eq!(Currency::new("euro").unwrap_err().to_string(), "a currency is three capital letters, such as EUR");
/// assert!(serde_json::from_str::<Currency>("978").is_err());
/// ```
#[macro_export]
macro_rules! value_object {
    (
        $(#[$attribute:meta])* pub struct $name:ident($plain:ty), $rule:expr, $expected:expr
        $(, { $($schema:tt)* })? $(,)?
    ) => {
        $(#[$attribute])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name($plain);

        impl $crate::ValueObject for $name {
            type Plain = $plain;

            fn expectation() -> ::std::borrow::Cow<'static, str> {
                $expected.into()
            }

            fn read(plain: $plain) -> Option<Self> {
                let rule: fn($plain) -> Option<$plain> = $rule;
                rule(plain).map(Self)
            }

            $(
                fn rule() -> $crate::values::Value {
                    $crate::values::json!({ $($schema)* })
                }
            )?
        }

        $crate::value_object!(@methods [] $name, $plain);
        $crate::value_object!(@schema [] $name, stringify!($name), true);
    };
    // Most schemas are written where they are used. A long one is written once, under its name.
    (@schema [$($generics:tt)*] $name:ty, $schema_name:expr, $is_inline:literal) => {
        impl<$($generics)*> $crate::values::JsonSchema for $name {
            fn inline_schema() -> bool {
                $is_inline
            }

            fn schema_name() -> ::std::borrow::Cow<'static, str> {
                $schema_name.into()
            }

            fn json_schema(_: &mut $crate::values::SchemaGenerator) -> $crate::values::Schema {
                $crate::values::schema::<Self>()
            }
        }
    };
    (@methods [$($generics:tt)*] $name:ty, $plain:ty) => {
        impl<$($generics)*> $name {
            /// Makes the value object from a plain value.
            ///
            /// # Errors
            /// When the rule does not allow the value; the message describes the allowed values.
            pub fn new(plain: impl Into<$plain>) -> Result<Self, $crate::Invalid> {
                $crate::values::try_new(plain)
            }

            /// The plain value.
            pub const fn get(&self) -> &$plain {
                &self.0
            }

            /// The plain value.
            #[must_use]
            pub fn into_inner(self) -> $plain {
                self.0
            }
        }

        impl<$($generics)*> ::std::str::FromStr for $name
        where
            $plain: ::std::str::FromStr,
        {
            type Err = $crate::Invalid;

            fn from_str(text: &str) -> Result<Self, $crate::Invalid> {
                let plain = text.parse::<$plain>().ok().and_then(<Self as $crate::ValueObject>::read);
                plain.ok_or_else(|| $crate::Invalid(<Self as $crate::ValueObject>::expectation()))
            }
        }

        impl<'de, $($generics)*> ::serde::Deserialize<'de> for $name {
            fn deserialize<D: ::serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                $crate::values::deserialize(deserializer)
            }
        }

        impl<$($generics)*> ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                ::std::fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

/// Whether no text may have this character: a control character, or one of the two noncharacters
/// U+FFFE and U+FFFF (Unicode, 23.7).
fn is_control(c: char) -> bool {
    c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}')
}

/// Whether every character of a name is visible, or belongs to a visible one. A name that shows
/// nothing, or that changes the order of the text around it, deceives its readers.
///
/// Source: Unicode, `Default_Ignorable_Code_Point` and `Bidi_Control`, and characters that are
/// drawn as a space.
fn is_visible(text: &str) -> bool {
    // The flags of regions are a black flag and tags. Nothing else has tags.
    const FLAG: char = '\u{1f3f4}';
    let mut before = None;
    for c in text.chars() {
        let belongs = match c {
            '\u{200c}' | '\u{200d}' | '\u{fe00}'..='\u{fe0f}' | '\u{e0100}'..='\u{e01ef}' => {
                before.is_some()
            }
            '\u{e0020}'..='\u{e007f}' => before.is_some_and(|before| {
                before == FLAG || ('\u{e0020}'..='\u{e007e}').contains(&before)
            }),
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}'
            | '\u{17b5}' => false,
            '\u{180b}'..='\u{180f}'
            | '\u{200b}'
            | '\u{200e}'
            | '\u{200f}'
            | '\u{202a}'..='\u{202e}' => false,
            '\u{2060}'..='\u{206f}' | '\u{2800}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}' => false,
            '\u{fff0}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' => {
                false
            }
            '\u{e0000}'..='\u{e0fff}' => false,
            _ => true,
        };
        if !belongs {
            return false;
        }
        before = Some(c);
    }
    // A joiner is between two characters.
    !matches!(before, Some('\u{200c}' | '\u{200d}'))
}

/// The control characters of [`is_control`] in a class of a regular expression, and in other
/// classes all but line breaks and tabs.
const CONTROLS: &str = "\u{0}-\u{1f}\u{7f}-\u{9f}\u{fffe}\u{ffff}";
const CONTROLS_BUT_LINES: &str = "\u{0}-\u{8}\u{b}-\u{1f}\u{7f}-\u{9f}\u{fffe}\u{ffff}";

/// Returns the rule of a [`Text`] as a regular expression of ECMA-262, as JSON Schema has it. A
/// test compares it with the rule.
///
/// The expression has no look-around and no character beyond U+FFFF, because some implementations
/// of JSON Schema have neither. So it allows the few characters beyond U+FFFF that
/// [`is_visible`] refuses.
fn one_line() -> String {
    // Characters that no text has, and those that only follow a visible character: see
    // `is_visible`.
    const NEVER: &str = "\u{ad}\u{34f}\u{61c}\u{115f}\u{1160}\u{17b4}\u{17b5}\
        \u{180b}-\u{180f}\u{200b}\u{200e}\u{200f}\u{202a}-\u{202e}\u{2060}-\u{206f}\
        \u{2800}\u{3164}\u{feff}\u{ffa0}\u{fff0}-\u{fffb}";
    const SPACES: &str = "\u{9}-\u{d}\u{20}\u{85}\u{a0}\u{1680}\u{2000}-\u{200a}\
        \u{2028}\u{2029}\u{202f}\u{205f}\u{3000}";
    const SELECTORS: &str = "\u{fe00}-\u{fe0f}";
    const JOINERS: &str = "\u{200c}\u{200d}";
    let inner = format!("[^{CONTROLS}{NEVER}]");
    let first = format!("[^{CONTROLS}{NEVER}{SPACES}{SELECTORS}{JOINERS}]");
    let last = format!("[^{CONTROLS}{NEVER}{SPACES}{JOINERS}]");
    format!("^{first}(?:{inner}*{last})?$")
}

/// Returns a text in its one spelling: Unicode's normalization form C. Programs write `é` as one
/// character or as two, and people see one name. Returns `None` if the composed text is too long: a
/// few characters become up to three.
fn compose<const MAX: usize>(text: String) -> Option<String> {
    let normalizer = const { ComposingNormalizerBorrowed::new_nfc() };
    let Cow::Owned(composed) = normalizer.normalize(&text) else { return Some(text) };
    (composed.chars().count() <= MAX).then_some(composed)
}

/// Text of 1 to `MAX` characters, without control characters, invisible characters, characters that
/// reorder text, and outer spaces. It is read into normalization form C.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Text<const MAX: usize>(String);

impl<const MAX: usize> ValueObject for Text<MAX> {
    type Plain = String;

    fn expectation() -> Cow<'static, str> {
        format!(
            "expected text of 1 to {MAX} characters, without control or invisible characters or outer spaces"
        )
        .into()
    }

    fn read(text: String) -> Option<Self> {
        let clean = (1..=MAX).contains(&text.chars().count())
            && !text.chars().any(is_control)
            && is_visible(&text)
            && text.trim() == text.as_str();
        clean.then_some(text).and_then(compose::<MAX>).map(Self)
    }

    fn rule() -> Value {
        json!({ "minLength": 1, "maxLength": MAX, "pattern": one_line() })
    }
}

value_object!(@methods [const MAX: usize] Text<MAX>, String);
value_object!(@schema [const MAX: usize] Text<MAX>, format!("Text{MAX}"), false);

impl<const MAX: usize> Text<MAX> {
    /// The most characters that the text can have.
    pub const MAX: usize = MAX;

    /// Returns the text of an event, under whichever rule it was accepted. A process manager makes
    /// its commands of it: a rule that is tightened later must not stop work that has begun.
    pub fn from_event(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

/// Text of 0 to `MAX` characters, in any number of lines. It is read into normalization form C.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LongText<const MAX: usize>(String);

impl<const MAX: usize> ValueObject for LongText<MAX> {
    type Plain = String;

    fn expectation() -> Cow<'static, str> {
        format!(
            "expected text of up to {MAX} characters, without control characters but line breaks and tabs"
        )
        .into()
    }

    fn read(text: String) -> Option<Self> {
        let clean = text.chars().count() <= MAX
            && !text.chars().any(|c| is_control(c) && !matches!(c, '\n' | '\t'));
        clean.then_some(text).and_then(compose::<MAX>).map(Self)
    }

    fn rule() -> Value {
        json!({ "maxLength": MAX, "pattern": format!("^[^{CONTROLS_BUT_LINES}]*$") })
    }
}

value_object!(@methods [const MAX: usize] LongText<MAX>, String);
value_object!(@schema [const MAX: usize] LongText<MAX>, format!("LongText{MAX}"), false);

/// A whole number from `MIN` to `MAX`. If `MIN` is 0, the type has a default, which is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Number<const MIN: i64, const MAX: i64>(i64);

impl<const MIN: i64, const MAX: i64> ValueObject for Number<MIN, MAX> {
    type Plain = i64;

    fn expectation() -> Cow<'static, str> {
        format!("expected a whole number from {MIN} to {MAX}").into()
    }

    fn read(number: i64) -> Option<Self> {
        (MIN..=MAX).contains(&number).then_some(Self(number))
    }

    fn rule() -> Value {
        json!({ "minimum": MIN, "maximum": MAX })
    }
}

value_object!(@methods [const MIN: i64, const MAX: i64] Number<MIN, MAX>, i64);
value_object!(@schema [const MIN: i64, const MAX: i64] Number<MIN, MAX>, "Number", true);

impl<const MAX: i64> Default for Number<0, MAX> {
    fn default() -> Self {
        Self(0)
    }
}

value_object! {
    /// The id of an aggregate: a UUID as 32 hexadecimal digits in five groups. Capital letters are
    /// read and changed into small ones, so that one aggregate has one id. Other spellings, which
    /// parsers accept and RFC 9562 does not have, are refused.
    pub struct Id(String),
    |text: String| {
        let uuid = if text.len() == 36 { uuid::Uuid::parse_str(&text).ok() } else { None };
        uuid.map(|uuid| uuid.to_string())
    },
    "an id is a UUID, such as 163082d2-b005-45d7-9eb6-aa1f83efd55d",
    { "format": "uuid", "examples": ["163082d2-b005-45d7-9eb6-aa1f83efd55d"] }
}

impl From<uuid::Uuid> for Id {
    fn from(uuid: uuid::Uuid) -> Self {
        Self(uuid.to_string())
    }
}

#[cfg(test)]
mod tests;
