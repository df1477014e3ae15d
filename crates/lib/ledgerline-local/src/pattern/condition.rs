//! The conditions of a field.

use std::{cmp::Ordering, net::IpAddr};

use serde_json::Value;

/// A condition of a field.
#[derive(Debug, Clone)]
pub(super) enum Condition {
    /// The field is present, or absent.
    Exists(bool),
    /// The value passes this test.
    Is(Test),
    /// The value passes none of these tests.
    AnythingBut(Vec<Test>),
}

impl Condition {
    /// Whether the value of a field that is present meets the condition.
    pub(super) fn is_met(&self, value: &Value) -> bool {
        match self {
            Self::Exists(present) => *present,
            Self::Is(test) => test.passes(value),
            Self::AnythingBut(tests) => !tests.iter().any(|test| test.passes(value)),
        }
    }
}

/// A test of a value. Texts of tests that ignore case are in lower case.
#[derive(Debug, Clone)]
pub(super) enum Test {
    Equal(Value),
    EqualIgnoringCase(String),
    Prefix(String),
    PrefixIgnoringCase(String),
    Suffix(String),
    SuffixIgnoringCase(String),
    Wildcard(Vec<Glyph>),
    Numeric(Vec<Bound>),
    Cidr(Cidr),
}

/// A part of a wildcard's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Glyph {
    /// Any number of characters.
    Any,
    One(char),
}

/// A comparison with a number.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bound {
    pub(super) operator: Operator,
    pub(super) number: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operator {
    Equal,
    Above,
    AtLeast,
    Below,
    AtMost,
}

/// A range of addresses.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cidr {
    pub(super) address: IpAddr,
    /// The number of leading bits that are the same in all addresses of the range.
    pub(super) bits: u32,
}

impl Test {
    fn passes(&self, value: &Value) -> bool {
        let text = value.as_str();
        let lower = || text.map(str::to_lowercase);
        match self {
            Self::Equal(expected) => match (expected.as_f64(), value.as_f64()) {
                (Some(expected), Some(number)) => are_equal(expected, number),
                _ => expected == value,
            },
            Self::EqualIgnoringCase(expected) => lower().is_some_and(|text| text == *expected),
            Self::Prefix(prefix) => text.is_some_and(|text| text.starts_with(prefix)),
            Self::PrefixIgnoringCase(prefix) => {
                lower().is_some_and(|text| text.starts_with(prefix))
            }
            Self::Suffix(suffix) => text.is_some_and(|text| text.ends_with(suffix)),
            Self::SuffixIgnoringCase(suffix) => lower().is_some_and(|text| text.ends_with(suffix)),
            Self::Wildcard(glyphs) => {
                text.is_some_and(|text| matches_wildcard(glyphs, &text.chars().collect::<Vec<_>>()))
            }
            Self::Numeric(bounds) => {
                value.as_f64().is_some_and(|number| bounds.iter().all(|bound| bound.holds(number)))
            }
            Self::Cidr(cidr) => text
                .and_then(|text| text.parse().ok())
                .is_some_and(|address| cidr.contains(address)),
        }
    }
}

fn are_equal(one: f64, other: f64) -> bool {
    one.partial_cmp(&other).is_some_and(Ordering::is_eq)
}

impl Bound {
    fn holds(self, number: f64) -> bool {
        match self.operator {
            Operator::Equal => are_equal(number, self.number),
            Operator::Above => number > self.number,
            Operator::AtLeast => number >= self.number,
            Operator::Below => number < self.number,
            Operator::AtMost => number <= self.number,
        }
    }
}

impl Cidr {
    fn contains(self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(range), IpAddr::V4(address)) => {
                let differing = range.to_bits() ^ address.to_bits();
                differing.leading_zeros() >= self.bits
            }
            (IpAddr::V6(range), IpAddr::V6(address)) => {
                let differing = range.to_bits() ^ address.to_bits();
                differing.leading_zeros() >= self.bits
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
        }
    }
}

/// Whether a wildcard matches a text. After a mismatch, the last [`Glyph::Any`] gets one character
/// more.
fn matches_wildcard(glyphs: &[Glyph], text: &[char]) -> bool {
    let (mut glyph, mut index) = (0, 0);
    let mut last_any: Option<(usize, usize)> = None;
    while index < text.len() {
        match glyphs.get(glyph) {
            Some(Glyph::Any) => {
                last_any = Some((glyph, index));
                glyph += 1;
            }
            Some(Glyph::One(one)) if *one == text[index] => {
                glyph += 1;
                index += 1;
            }
            Some(Glyph::One(_)) | None => {
                let Some((any, start)) = last_any else { return false };
                last_any = Some((any, start + 1));
                (glyph, index) = (any + 1, start + 1);
            }
        }
    }
    glyphs[glyph..].iter().all(|glyph| *glyph == Glyph::Any)
}
