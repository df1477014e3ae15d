#![doc = include_str!("../README.md")]

pub mod build;
mod cargo;
mod functions;
pub mod generate;
mod longest;
pub mod lookup;
pub mod manifests;
mod parameters;
pub mod policy;
pub mod progress;
mod properties;
mod rights;
pub mod rules;
pub mod sample_events;
pub mod template;
mod yaml;

#[cfg(test)]
mod tests {
    use std::{path::Path, sync::LazyLock};

    use crate::template::Source;

    /// The folder of the application on which the libraries are tested.
    pub(crate) const TANK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../ledgerline-tank");

    /// Its template.
    pub(crate) static TANKS: LazyLock<Source> =
        LazyLock::new(|| Source::read(&Path::new(TANK).join("template.yaml")).unwrap());
}
