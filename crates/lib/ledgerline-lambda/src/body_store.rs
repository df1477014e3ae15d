//! Body objects: a package of functions declares the categories whose commits may have them, in
//! [`handlers!`](crate::handlers!). Its functions that read such a category get a manifest with
//! [`BodyGrants`](ledgerline::manifest::BodyGrants), and a store with the objects. A function of
//! another package links none of their code.

use std::sync::OnceLock;

use aws_config::SdkConfig;
use ledgerline::manifest::{BODIES_BUCKET, BODY_OVER, Manifest, Name};
use ledgerline_dynamodb::DynamoDbStore;

use crate::config::{self, ConfigError};

/// Returns a store with the body objects in this bucket. It writes them for commits whose items
/// would have more than this number of bytes, or do not fit.
pub type Open = fn(DynamoDbStore, &SdkConfig, &str, usize) -> DynamoDbStore;

static DECLARED: OnceLock<(&[&str], Open)> = OnceLock::new();

/// Declares the categories whose commits may have body objects, and the function that adds the
/// objects to a store. Only the first call counts.
pub fn declare(categories: &'static [&'static str], open: Open) {
    // The functions of a package declare the same, and a process runs one.
    let _ = DECLARED.set((categories, open));
}

/// Adds the body objects that the function reads and writes to its manifest.
pub(crate) fn grant(manifest: Manifest) -> Manifest {
    let Some((categories, _)) = DECLARED.get() else { return manifest };
    let categories = categories.iter().copied().map(Name::Borrowed).collect();
    match manifest.body_grants(&categories) {
        Some(grants) => manifest.bodies(grants),
        None => manifest,
    }
}

/// Returns the store, with body objects if the manifest of the function declares them.
///
/// # Errors
/// When a variable is missing or not valid. The error names it.
pub(crate) fn open(store: DynamoDbStore, sdk: &SdkConfig) -> Result<DynamoDbStore, ConfigError> {
    let Some((categories, open)) = DECLARED.get().filter(|_| config::may_read(BODIES_BUCKET))
    else {
        return Ok(store);
    };
    let bucket = config::text(BODIES_BUCKET)?;
    let over = match config::may_read(BODY_OVER) {
        true => config::parse_or(BODY_OVER, usize::MAX)?,
        false => usize::MAX,
    };
    Ok(open(store, sdk, &bucket, over).with_body_categories(categories))
}
