//! The seed of the random choices in tests.

use std::{env, process::Command, sync::LazyLock};

/// The variable with the seed.
pub const SEED: &str = "LEDGERLINE_SEED";

/// Returns the seed of all random choices of a run of tests.
///
/// It is the number in `LEDGERLINE_SEED`. Without that variable, it is the first 32 bits of the id
/// of the commit that git has checked out. So each change is tested with another seed, and all runs
/// on one commit have the same seed. If git has no commit, the seed is 1.
#[must_use]
pub fn seed() -> u64 {
    static FOUND: LazyLock<u64> = LazyLock::new(|| {
        let given = env::var(SEED).ok();
        // A default in place of a wrong seed would not repeat the run.
        let given = given.map(|seed| seed.parse().expect("LEDGERLINE_SEED is a whole number"));
        given.or_else(commit_seed).unwrap_or(1)
    });
    *FOUND
}

fn commit_seed() -> Option<u64> {
    let head = Command::new("git").args(["rev-parse", "HEAD"]).output().ok()?;
    seed_from_id(std::str::from_utf8(&head.stdout).ok()?)
}

fn seed_from_id(commit: &str) -> Option<u64> {
    u64::from_str_radix(commit.get(..8)?, 16).ok()
}

/// Returns the command that repeats the test `test` of the package under test with this seed and
/// these other variables.
#[must_use]
pub fn repeat_command(seed: u64, variables: &str, test: &str) -> String {
    let package = env::var("CARGO_PKG_NAME").map(|name| format!(" -p {name}")).unwrap_or_default();
    format!("Again: {SEED}={seed}{variables} cargo test{package} {test}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_the_beginning_of_the_commits_id() {
        assert_eq!(seed_from_id("417686b10c5e5b8e0f8a\n"), Some(0x4176_86b1));
        assert_eq!(seed_from_id(""), None);
        assert_eq!(seed_from_id("fatal: not a git repository"), None);
    }
}
