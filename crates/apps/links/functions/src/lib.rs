//! Users who rate links and follow each other: the functions. Each handler is the function of a
//! binary.

pub mod commands;
pub mod process_managers;
pub mod projectors;
pub mod queries;

use ledgerline::Aggregate;
use links::{link::Link, user::User};

ledgerline_lambda::handlers! {
    bodies: &[Link::CATEGORY, User::CATEGORY], ledgerline_s3::open;
    feeds_projector: projectors::feeds::run();
    link_commands: ledgerline_lambda::commands::run(commands::link::routes());
    link_ratings_projector: ledgerline_lambda::log_projector::run(links::views::link_ratings::VIEW);
    link_search_projector: ledgerline_opensearch::state_projector::run(
        links::views::link_search::VIEW,
        links::views::link_search::DEFINITION,
    );
    link_search_queries: ledgerline_lambda::queries::run(queries::search::routes());
    rating_queries: ledgerline_lambda::queries::run(queries::rating::routes());
    sign_up: ledgerline_lambda::sign_up::run::<User>(commands::user::sign_up);
    user_commands: ledgerline_lambda::commands::run(commands::user::routes());
    user_ratings_projector: ledgerline_lambda::log_projector::run_with_kinesis(links::views::user_ratings::VIEW);
    welcome_email: process_managers::welcome_email::run();
}
