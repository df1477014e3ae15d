//! The handlers of many functions in one program, for development: one link instead of one for each
//! function.
//!
//! [`handlers!`](crate::handlers!) declares the functions of a package. The binary of a function
//! calls one of them, and the development binary of a workspace finds all of them by name.

use futures::future::LocalBoxFuture;

use crate::{config, failure::Error};

/// A running function: it starts, and handles events until its process ends.
pub type Running = LocalBoxFuture<'static, Result<(), Error>>;

/// A function: its name, with `_` for `-`, and its start.
pub type Handler = (&'static str, fn() -> Running);

/// Declares the functions of a package: the name of each, with `_` for `-`, and the runner that it
/// awaits.
///
/// Each function becomes a `pub fn` of its name, which its binary awaits, and an entry of
/// `HANDLERS`. A binary must not find its own function in `HANDLERS`: all functions of the package
/// would be linked into it.
///
/// A first line `bodies: &[Order::CATEGORY], ledgerline_s3::open;` lets the commits of these
/// categories have body objects (docs/data.md).
///
/// ```
/// # struct All;
/// # impl ledgerline::Aggregates for All {
/// #     fn visit(_: &mut impl ledgerline::Visitor) {}
/// # }
/// ledgerline_lambda::handlers! {
///     events_queries: ledgerline_lambda::events::run::<All>();
///     fanout: ledgerline_lambda::fanout::run::<All>();
/// }
/// # fn main() {
/// assert_eq!(HANDLERS.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["events_queries", "fanout"]);
/// # }
/// ```
#[macro_export]
macro_rules! handlers {
    (bodies: $categories:expr, $open:expr; $($name:ident: $runner:expr;)*) => {
        $crate::handlers! {
            @after { $crate::body_store::declare($categories, $open) } $($name: $runner;)*
        }
    };
    (@after $declare:block $($name:ident: $runner:expr;)*) => {
        $(
            #[doc = concat!("Runs the function `", stringify!($name), "`.")]
            pub fn $name() -> $crate::handlers::Running {
                ::std::boxed::Box::pin(async { $declare; $runner.await })
            }
        )*

        /// The functions of this package, for the development binary.
        pub const HANDLERS: &[$crate::handlers::Handler] = &[$((stringify!($name), $name)),*];
    };
    ($($name:ident: $runner:expr;)*) => {
        $crate::handlers! { @after {} $($name: $runner;)* }
    };
}

/// The name of the variable with the function's name. Lambda sets it.
const FUNCTION: &str = "AWS_LAMBDA_FUNCTION_NAME";

/// The argument with which the development binary prints the names of its functions.
const NAMES: &str = "--names";

/// Runs the function that `AWS_LAMBDA_FUNCTION_NAME` names. This is the development binary: the
/// local stack starts one process of it for each function, under the name of the function's own
/// binary. With the argument `--names`, it prints the names of all functions.
///
/// # Errors
/// When no function has this name, and the errors of the function.
#[expect(clippy::print_stdout, reason = "`cargo xtask wire` reads the names")]
pub async fn run(handlers: &[&[Handler]]) -> Result<(), Error> {
    if std::env::args().any(|argument| argument == NAMES) {
        names(handlers).for_each(|name| println!("{name}"));
        return Ok(());
    }
    find(handlers, &config::text(FUNCTION)?)?().await
}

fn find(handlers: &[&[Handler]], name: &str) -> Result<fn() -> Running, Error> {
    let declared = name.replace('-', "_");
    let found = handlers.iter().copied().flatten().find(|(known, _)| *known == declared);
    found.map(|(_, start)| *start).ok_or_else(|| {
        let known = names(handlers).collect::<Vec<_>>().join(", ");
        format!("`{name}` is not a function of this program; set {FUNCTION} to one of: {known}")
            .into()
    })
}

/// The names of the functions, as the template has them.
pub fn names(handlers: &[&[Handler]]) -> impl Iterator<Item = String> {
    handlers.iter().copied().flatten().map(|(name, _)| name.replace('_', "-"))
}

#[cfg(test)]
#[expect(unreachable_pub, reason = "the macro is for libraries")]
mod tests {
    use super::*;

    handlers! {
        tank_commands: async { Err("commands".into()) };
        tanks_projector: async { Err("projector".into()) };
    }

    #[tokio::test]
    async fn a_function_is_found_by_the_name_of_its_binary() {
        for (name, runs) in [("tank-commands", "commands"), ("tanks-projector", "projector")] {
            let error = find(&[&[], HANDLERS], name).unwrap()().await.unwrap_err();
            assert_eq!(error.to_string(), runs);
        }
        let unknown = find(&[HANDLERS], "tank-queries").unwrap_err().to_string();
        assert!(unknown.contains("`tank-queries` is not a function of this program"), "{unknown}");
        assert!(unknown.ends_with("tank-commands, tanks-projector"), "{unknown}");
    }
}
