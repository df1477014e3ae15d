//! The proofs of the libraries, with users, ratings and feeds.

use fastrand::Rng;
use jiff::SignedDuration;
use ledgerline::{Commit, spec::valid};
use ledgerline_dynamodb::LogRows;
use ledgerline_lambda::process_manager::{POSITIONS, ProcessManager};
use ledgerline_proofs::{
    application::{Application, History},
    case::{Case, Outcome},
};
use ledgerline_testing::table;
use links::{
    All,
    link::{self, Link},
    user::{self, Action, State, User},
    views::{feeds, link_ratings, user_ratings},
};
use links_functions::{
    commands,
    process_managers::welcome_email::{WelcomeEmail, ses},
    projectors::feeds::FeedProjector,
};

fn application() -> Application {
    Application::new::<All>("links", concat!(env!("CARGO_MANIFEST_DIR"), "/../model/shapes"))
        .aggregate::<Link>(ratings, |state| format!("{state:?}"))
        .aggregate::<User>(follows, |state| match state {
            State::Unregistered => String::new(),
            State::Registered(user) => format!("{:?}", user.follows.keys().collect::<Vec<_>>()),
        })
        .commands("link-commands", commands::link::routes)
        .commands("user-commands", commands::user::routes)
        .log_projector("LinkRatingsTable", link_ratings::VIEW)
        .log_projector("UserRatingsTable", user_ratings::VIEW)
        .reads(|commit| drop(feeds::work(commit)))
        .case(&["FeedsTable"], feed_case)
        .case(&["WelcomeEmailPositionsTable"], welcome)
}

/// Returns commands that rate a link repeatedly. The name's prefix, up to a dash, is the link, so
/// that the ratings of several users add up.
fn ratings(name: &str, rng: &mut Rng) -> History<Link> {
    let url = format!("https://{}.example/", name.split('-').next().unwrap_or_default());
    rating_history(name, &url, rng)
}

fn rating_history(user_id: &str, link_url: &str, rng: &mut Rng) -> History<Link> {
    let rate = |rng: &mut Rng| link::Command {
        user_id: valid(user_id),
        link_url: valid(link_url),
        rating: valid(rng.u8(1..=5)),
        title: rng.bool().then(|| valid("a title")),
        image: None,
        tags: if rng.bool() { vec![valid(rng.u8(..).to_string())].try_into().ok() } else { None },
    };
    let commands = (0..rng.u32(1..7)).map(|_| rate(rng)).collect();
    History { id: link::id(user_id, link_url), actor: user_id.into(), commands }
}

/// Returns commands of a user who registers, follows others, and stops following them.
fn follows(name: &str, rng: &mut Rng) -> History<User> {
    let mut actions = vec![Action::Register(valid("Ada"), valid("ada@example.com"))];
    for _ in 0..rng.u32(1..6) {
        let other = valid(["bob", "cleo"][rng.usize(0..2)]);
        actions.push(match rng.bool() {
            true => Action::Follow(other),
            false => Action::Unfollow(other),
        });
    }
    let commands =
        actions.into_iter().map(|action| user::Command { user_id: valid(name), action }).collect();
    History { id: name.into(), actor: name.into(), commands }
}

/// Returns the commits of a user who registers, follows another user, stops, and follows again.
fn follower(id: &str, other: &str) -> Vec<Commit> {
    let other = || valid(other);
    let actions = [
        Action::Register(valid("Ada"), valid("ada@example.com")),
        Action::Follow(other()),
        Action::Unfollow(other()),
        Action::Follow(other()),
    ];
    let commands =
        actions.into_iter().map(|action| user::Command { user_id: valid(id), action }).collect();
    History::<User> { id: id.into(), actor: id.into(), commands }.commits_with_states()
}

/// Returns the case of feeds, which depend on two categories. Users follow before, between and
/// after the ratings.
fn feed_case() -> Case {
    let mut rng = Rng::with_seed(1);
    let mut rate = |url| rating_history("ada", url, &mut rng).commits_with_states();
    let streams = vec![
        rate("https://a.example/"),
        follower("bob", "ada"),
        rate("https://b.example/"),
        follower("cleo", "ada"),
    ];
    Case::consumer("feeds", streams, |wire| FeedProjector {
        table: LogRows::new(wire.dynamodb(), table("FeedsTable"), feeds::TABLE),
    })
}

/// Returns the case of the process manager of mails. After a crash between the mail and its record,
/// the function does not know whether the mail was sent, and does not send it again. There is at
/// most one mail, and the table has `unknown`.
fn welcome() -> Case {
    let case = Case::listener("welcome-email", vec![follower("ada", "bob")], |wire| {
        let mails = LogRows::new(wire.dynamodb(), table("WelcomeEmailPositionsTable"), POSITIONS);
        let ses = aws_sdk_sesv2::Client::from_conf(ses(&wire.sdk_config()).build());
        let sender = Some("hello@example.com".to_owned());
        let reaction =
            WelcomeEmail { mails: mails.clone(), ses, claim: SignedDuration::ZERO, sender };
        ProcessManager { positions: mails, reaction }
    });
    case.right_if(|found, expected| {
        let note = |outcome: &Outcome, status: &str| {
            outcome.tables.values().any(|row| row.contains(status))
        };
        let same_rows = found.tables.keys().eq(expected.tables.keys());
        let honest = found == expected || (found.mails <= 1 && note(found, "unknown"));
        same_rows && honest && !note(found, "sending")
    })
}

ledgerline_proofs::application_tests!(application());
