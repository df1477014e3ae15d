//! The projector functions: every binary binds one read model of the crate `read-models` to a runner of `lambda-kit`.
