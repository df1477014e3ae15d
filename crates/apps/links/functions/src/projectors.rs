//! Projectors that take more than one write for a commit. All others are their binary alone.

pub mod feeds;
