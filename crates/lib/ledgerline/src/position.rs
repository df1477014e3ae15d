//! The position of a consumer in a stream, and its check of a delivered commit (rule 7).

/// The relation of a delivered commit to the consumer's position in the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// The commit is the next one.
    Next,
    /// The consumer has applied the commit already.
    Duplicate,
    /// Commits between the position and this one have not arrived: the consumer must read them from
    /// the log first.
    Gap,
}

/// Compares the version of a commit with the position, the last version that was applied (0 for
/// none).
pub fn check(position: u64, version: u64) -> Delivery {
    if version <= position {
        Delivery::Duplicate
    } else if version == position + 1 {
        Delivery::Next
    } else {
        Delivery::Gap
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_next_version_is_applied_an_applied_one_is_a_duplicate_and_the_rest_is_a_gap() {
        for (version, delivery) in [
            (1, Delivery::Duplicate),
            (3, Delivery::Duplicate),
            (4, Delivery::Next),
            (5, Delivery::Gap),
            (u64::MAX, Delivery::Gap),
        ] {
            assert_eq!(check(3, version), delivery, "{version}");
        }
    }

    proptest! {
        /// Rule 7: each version is applied once and in order, even if the commits arrive in any
        /// order, repeatedly, or not at all.
        #[test]
        fn every_version_is_applied_exactly_once_and_in_order(
            arrivals in prop::collection::vec(1..20_u64, 0..60),
        ) {
            let mut applied = Vec::new();
            for version in arrivals {
                let position = applied.len() as u64;
                match check(position, version) {
                    Delivery::Next => applied.push(version),
                    Delivery::Duplicate => prop_assert!(applied.contains(&version)),
                    Delivery::Gap => applied.extend(position + 1..=version),
                }
            }
            prop_assert_eq!(&applied, &(1..=applied.len() as u64).collect::<Vec<_>>());
        }
    }
}
