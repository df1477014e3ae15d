//! The aggregates of the applications, one module each, always in the same order: id, events, state, decisions.

/// Declares the modules, and shows their aggregates to visitors.
macro_rules! aggregates {
    ($($module:ident::$aggregate:ident,)*) => {
        $(pub mod $module;)*

        /// Shows every aggregate to the visitor.
        pub fn visit(visitor: &mut impl decider::Visitor) {
            $(visitor.visit::<$module::$aggregate>();)*
        }
    };
}

// One line for each.
aggregates! {
    transfer::Transfer,
    link::Link,
    user::User,
    todo::Todo,
    widget::Widget,
    account::Account,
}
