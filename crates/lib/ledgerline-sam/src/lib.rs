#![doc = include_str!("../README.md")]

mod blocks;
pub mod build;
mod cargo;
pub mod check;
mod for_each;
mod functions;
pub mod generate;
pub mod grants;
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

    /// The template of the application on which the libraries are tested.
    pub(crate) static TANKS: LazyLock<Source> = LazyLock::new(|| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ledgerline-tank/template.yaml");
        Source::read(&path).unwrap()
    });

    /// The same template with a hand-written role of the fanout. Only the role's grants are a
    /// generated block.
    pub(crate) static BY_HAND: LazyLock<Source> = LazyLock::new(|| {
        let text = TANKS.text();
        let (before, role) = text.split_once("  # <generated FanoutRole>\n").unwrap();
        let (role, after) = role.split_once("  # </generated>\n").unwrap();
        let (head, grants) = role.split_once("            Statement:\n").unwrap();
        let text = format!(
            "{before}{head}            Statement:\n              # <generated grants>\n{grants}              # </generated>\n{after}"
        );
        TANKS.rewritten(&text, Vec::new()).unwrap()
    });
}
