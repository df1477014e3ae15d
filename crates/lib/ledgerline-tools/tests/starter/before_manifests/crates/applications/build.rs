//! Writes the visit of all aggregates from the dependencies in `Cargo.toml`, so that an application is one line there.

use std::{env, fs, path::Path};

use anyhow::{Context, Result};

fn main() -> Result<()> {
    println!("cargo::rerun-if-changed=Cargo.toml");
    let manifest: toml::Table = fs::read_to_string("Cargo.toml")?.parse()?;
    let dependencies =
        manifest.get("dependencies").and_then(toml::Value::as_table).context("no dependencies")?;
    let path = |dependency: &toml::Value| Some(dependency.get("path")?.as_str()?.to_owned());
    let applications = dependencies.iter().filter(|(_, dependency)| path(dependency).is_some());
    let visits =
        applications.map(|(name, _)| format!("    {}::All::visit(visitor);\n", name.replace('-', "_")));
    let code = format!(
        "fn visit_all(visitor: &mut impl ledgerline::Visitor) {{\n{}}}\n",
        visits.collect::<String>()
    );
    let out = env::var("OUT_DIR").context("cargo says where to write")?;
    fs::write(Path::new(&out).join("all.rs"), code)?;
    Ok(())
}
