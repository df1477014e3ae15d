//! The projectors that need more than one write for a commit. All other projectors consist of their
//! binary alone.

pub mod feeds;
