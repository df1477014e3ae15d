//! Writes the table of handlers from the dependencies in `Cargo.toml`, so that an application is
//! one line there.

use std::{env, fs, path::Path};

use anyhow::{Context, Result};

fn main() -> Result<()> {
    println!("cargo::rerun-if-changed=Cargo.toml");
    let manifest: toml::Table = fs::read_to_string("Cargo.toml")?.parse()?;
    let dependencies =
        manifest.get("dependencies").and_then(toml::Value::as_table).context("no dependencies")?;
    let packages = dependencies.iter().filter(|(_, dependency)| dependency.get("path").is_some());
    let tables: String =
        packages.map(|(name, _)| format!("    {}::HANDLERS,\n", name.replace('-', "_"))).collect();
    let code = format!("const HANDLERS: &[&[ledgerline_lambda::handlers::Handler]] = &[\n{tables}];\n");
    let out = env::var("OUT_DIR").context("cargo says where to write")?;
    fs::write(Path::new(&out).join("handlers.rs"), code)?;
    Ok(())
}
