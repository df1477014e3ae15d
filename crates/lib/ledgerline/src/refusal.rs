//! Refusals: the reasons why a domain does not carry out a command.

use std::{borrow::Cow, fmt};

/// A domain's refusal of a command, with all data that the edge needs to answer the client.
///
/// Each refusal of an aggregate is a constant, declared with [`refusals!`](crate::refusals). If the
/// detail depends on the state, the decision sets another detail with [`saying`](Self::with_detail).
///
/// ```
/// use ledgerline::Refusal;
///
/// const TOO_LITTLE: Refusal = Refusal::refused("too-little", "there is less in it");
///
/// let refusal = TOO_LITTLE.with_detail("the level of 5 does not cover 6");
/// assert_eq!(refusal.code(), TOO_LITTLE.code());
/// assert_eq!(refusal.to_string(), "the level of 5 does not cover 6");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct Refusal {
    kind: RefusalKind,
    code: &'static str,
    detail: Cow<'static, str>,
}

impl Refusal {
    /// The aggregate does not exist.
    pub const fn not_found(code: &'static str, detail: &'static str) -> Self {
        Self { kind: RefusalKind::NotFound, code, detail: Cow::Borrowed(detail) }
    }

    /// The aggregate exists already.
    pub const fn already_exists(code: &'static str, detail: &'static str) -> Self {
        Self { kind: RefusalKind::AlreadyExists, code, detail: Cow::Borrowed(detail) }
    }

    /// The caller may not do this.
    pub const fn forbidden(code: &'static str, detail: &'static str) -> Self {
        Self { kind: RefusalKind::Forbidden, code, detail: Cow::Borrowed(detail) }
    }

    /// A rule of the domain does not allow it.
    pub const fn refused(code: &'static str, detail: &'static str) -> Self {
        Self { kind: RefusalKind::Refused, code, detail: Cow::Borrowed(detail) }
    }

    /// Returns the same refusal with a detail for this one case.
    #[must_use]
    pub fn with_detail(self, detail: impl fmt::Display) -> Self {
        Self { detail: Cow::Owned(detail.to_string()), ..self }
    }

    /// Returns the family of the refusal.
    pub const fn kind(&self) -> RefusalKind {
        self.kind
    }

    /// Returns the stable name in kebab case, for programs: the end of the problem's `type`.
    pub const fn code(&self) -> &'static str {
        self.code
    }

    /// Returns the text that explains the refusal to people.
    pub fn detail(&self) -> &str {
        &self.detail
    }
}

/// The families of refusals. The edge maps them to HTTP in one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalKind {
    /// The aggregate does not exist.
    NotFound,
    /// The aggregate exists already.
    AlreadyExists,
    /// The caller may not do this.
    Forbidden,
    /// A rule of the domain does not allow it.
    Refused,
}

/// Declares the refusals of an aggregate, each a constant. Also declares `REFUSALS`, the list of
/// all of them, for [`Aggregate::REFUSALS`](crate::Aggregate::REFUSALS).
///
/// ```
/// ledgerline::refusals! {
///     /// No such tank.
///     UNKNOWN = not_found("unknown-tank", "there is no such tank");
///     /// There is less in it.
///     TOO_LITTLE = refused("too-little", "the level does not cover the amount");
/// }
///
/// assert_eq!(REFUSALS.iter().map(ledgerline::Refusal::code).collect::<Vec<_>>(), ["unknown-tank", "too-little"]);
/// ```
#[macro_export]
macro_rules! refusals {
    ($($(#[$attribute:meta])* $name:ident = $kind:ident($code:literal, $detail:literal);)+) => {
        $($(#[$attribute])* pub const $name: $crate::Refusal = $crate::Refusal::$kind($code, $detail);)+

        /// Every refusal of this aggregate.
        pub const REFUSALS: &[$crate::Refusal] = &[$($name),+];
    };
}
