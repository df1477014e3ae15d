//! The argument `--build-snapshots` of a command function. An operator runs it before the
//! deployment of a new version. It folds long streams with the new state schema and saves their
//! snapshots. So the first commands after the deployment do not wait for the folds.

use std::{io::Write, time::Duration};

use ledgerline::{Aggregate, Consistency, SnapshotStore, StreamId, load};
use ledgerline_dynamodb::DynamoDbStore;
use tokio::time::timeout;

use crate::failure::Error;

/// The pause between two reports of a fold's progress.
const REPORT: Duration = Duration::from_secs(5);

/// Returns the streams after `--build-snapshots`, if the program is called with it.
pub(crate) fn requested_streams(
    arguments: impl IntoIterator<Item = String>,
) -> Option<Vec<String>> {
    let mut arguments = arguments.into_iter().skip(1);
    (arguments.next()? == "--build-snapshots").then(|| arguments.collect())
}

/// Folds these streams, one after the other, and reports the progress.
pub(crate) async fn build<A: Aggregate>(
    store: &DynamoDbStore,
    streams: Vec<String>,
) -> Result<(), Error> {
    let mut printed = std::io::stdout();
    for name in streams {
        let stream =
            StreamId::try_from(name.clone()).map_err(|error| format!("{name}: {error}"))?;
        if stream.category() != A::CATEGORY {
            return Err(format!(
                "`{name}` is not a stream of this function, whose streams begin with {}-",
                A::CATEGORY
            )
            .into());
        }
        // Each round begins at the snapshot that the round before saved.
        let loaded = loop {
            match timeout(REPORT, load::<A>(store, &stream, None, Consistency::Strong)).await {
                Ok(loaded) => break loaded?,
                Err(_) => {
                    let kept = store.load_snapshot(&stream, A::STATE_SCHEMA).await?;
                    writeln!(
                        printed,
                        "{name}: folded up to version {}",
                        kept.map_or(0, |(version, _)| version)
                    )?;
                }
            }
        };
        writeln!(
            printed,
            "{name}: ready at version {}, state schema {}",
            loaded.version,
            A::STATE_SCHEMA
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_program_with_the_argument_builds_snapshots() {
        let requested =
            |arguments: &[&str]| requested_streams(arguments.iter().map(ToString::to_string));
        assert_eq!(requested(&["tank-commands"]), None);
        assert_eq!(requested(&["tank-commands", "--manifest"]), None);
        assert_eq!(
            requested(&["tank-commands", "--build-snapshots", "a-1", "a-2"]),
            Some(vec!["a-1".into(), "a-2".into()])
        );
    }
}
