//! The projector functions: every binary binds one read model of the crate `read-models` to a runner of `lambda-kit`. What
//! takes more than one write for a commit is here.

pub mod feeds;
