//! The aggregates of the applications, one module each, always in the same order: id, events, state, decisions.

pub mod account;

/// Shows every aggregate to the visitor. A new one adds its module above and its line here.
pub fn visit(visitor: &mut impl decider::Visitor) {
    visitor.visit::<account::Account>();
}
