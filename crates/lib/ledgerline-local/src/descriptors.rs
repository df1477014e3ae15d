//! The limit of files and connections that a process may have open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// A limit that is enough for dozens of clients: the stack and each function have some hundred
/// open.
const ENOUGH: u64 = 4_096;
/// The highest limit that macOS accepts, regardless of its hard limit.
const MOST: u64 = 10_240;

/// Raises the soft limit as far as the hard limit allows, for this process and the functions that
/// it starts. macOS begins with 256, at which eight clients starve the stack. Returns a warning if
/// the limit is still low.
pub(crate) fn raise_limit() -> Option<String> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.map_or(MOST, |maximum| maximum.min(MOST));
    if current.is_some_and(|current| current < wanted) {
        // Without the permission, the limit stays, and the warning below reports it.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum });
    }
    let limit = getrlimit(Resource::Nofile).current.filter(|limit| *limit < ENOUGH)?;
    Some(format!(
        "this process may open only {limit} files: for many clients, run ulimit -n {ENOUGH} first"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_as_high_as_the_hard_one_allows() {
        let hard = getrlimit(Resource::Nofile).maximum;
        let warning = raise_limit();
        let soft = getrlimit(Resource::Nofile).current;
        assert!(
            soft.is_none_or(|soft| soft >= hard.map_or(MOST, |hard| hard.min(MOST))),
            "{soft:?} of {hard:?}"
        );
        assert_eq!(warning.is_some(), soft.is_some_and(|soft| soft < ENOUGH));
    }
}
