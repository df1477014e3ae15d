//! The decision of a log consumer on a version (rule 7).

/// The decision on a commit, given the handler's position in its stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The commit is the next one.
    Apply,
    /// The commit was applied before.
    Skip,
    /// Commits between the position and this one have not arrived: they must be read from the log first.
    Gap,
}

/// Judges a commit's version by the position, the last version that was applied (0 for none).
#[must_use]
pub fn judge(position: u64, version: u64) -> Verdict {
    if version <= position {
        Verdict::Skip
    } else if version == position + 1 {
        Verdict::Apply
    } else {
        Verdict::Gap
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_next_version_is_applied_what_is_known_is_skipped_and_the_rest_is_a_gap() {
        for (version, verdict) in [
            (1, Verdict::Skip),
            (3, Verdict::Skip),
            (4, Verdict::Apply),
            (5, Verdict::Gap),
            (u64::MAX, Verdict::Gap),
        ] {
            assert_eq!(judge(3, version), verdict, "{version}");
        }
    }

    proptest! {
        /// Rule 7: each version is applied once and in order, however the commits arrive: in any order, repeated, or not at all.
        #[test]
        fn every_version_is_applied_exactly_once_and_in_order(
            arrivals in prop::collection::vec(1..20_u64, 0..60),
        ) {
            let mut applied = Vec::new();
            for version in arrivals {
                let position = applied.len() as u64;
                match judge(position, version) {
                    Verdict::Apply => applied.push(version),
                    Verdict::Skip => prop_assert!(applied.contains(&version)),
                    Verdict::Gap => applied.extend(position + 1..=version),
                }
            }
            prop_assert_eq!(&applied, &(1..=applied.len() as u64).collect::<Vec<_>>());
        }
    }
}
