//! The projector of the feeds: [`links::views::feeds`] defines the work after a commit, and this
//! module does it, in as many writes as necessary.

use ledgerline::{
    Changes, Commit,
    manifest::{Action, Manifest, Name, Source, SubscriberKind, Table},
    position::{Delivery, check},
    view_store::{CommitChanges, ViewError},
};
use ledgerline_dynamodb::{LogRows, PageQuery, RowKey};
use ledgerline_lambda::{
    Error, config,
    queue::{self, ApplyError, Consumer},
};
use links::views::{
    feeds,
    feeds::{Entry, FROM, Follow, OF, RECENT, Recent, TABLE, Then},
};

/// The number of rows that are read at once. It bounds the work between two marks of the progress
/// (rule 11).
const PAGE: i32 = 1_000;

/// Writes the feeds.
#[derive(Debug)]
pub struct FeedProjector {
    /// The table that holds the rows.
    pub table: LogRows,
}

/// The manifest of the function.
#[must_use]
pub fn manifest() -> Manifest {
    use Action::{BatchWriteItem, DeleteItem, GetItem, PutItem, Query, UpdateItem};
    // One write is for the changes of a commit itself, with the position; batches are for the
    // entries that it adds to feeds.
    let actions = [GetItem, Query, PutItem, UpdateItem, DeleteItem, BatchWriteItem];
    let categories = OF.iter().map(|of| Name::Borrowed(*of)).collect();
    Manifest::new(Source::Queue(categories))
        .subscriber(SubscriberKind::LogProjector, Table::grant(TABLE, actions))
}

/// Runs the function.
///
/// # Errors
/// When it cannot start.
pub async fn run() -> Result<(), Error> {
    queue::run(manifest(), async |sdk| {
        let table =
            LogRows::new(aws_sdk_dynamodb::Client::new(&sdk), config::text(TABLE.variable)?, TABLE);
        // This call opens the connection, so that the first message does not wait for it.
        let _ = table.view().generations().await;
        Ok(FeedProjector { table })
    })
    .await
}

impl Consumer for FeedProjector {
    async fn apply(&self, commit: &Commit) -> Result<(Delivery, u64), ApplyError> {
        ApplyError::check_category(OF, commit)?;
        let work = feeds::work(commit).map_err(|source| ApplyError::changes(commit, source))?;
        let stream = &commit.stream;
        let version = commit.version;
        let delivery =
            |changes: &Changes| CommitChanges { stream, version, changes: changes.clone() };
        let Some(then) = work.then else {
            return Ok(self.table.deliver(delivery(&work.changes)).await?);
        };
        let (position, progress) = self.table.progress(stream).await?;
        let verdict = check(position, version);
        if verdict != Delivery::Next {
            return Ok((verdict, position));
        }
        let mark = async |changes: &Changes, from: &str, cursor: &str| {
            let progress = Some(format!("{from}\n{cursor}"));
            self.table.begin(delivery(changes), progress).await
        };
        let (from, mut cursor) = match &progress {
            // An earlier attempt began the work, and was interrupted at this mark.
            Some(progress) => {
                let (from, cursor) = progress.split_once('\n').unwrap_or_default();
                (from.to_owned(), Some(cursor.to_owned()).filter(|cursor| !cursor.is_empty()))
            }
            None => {
                let from = self.find_oldest(&then).await?;
                match mark(&work.changes, &from, "").await? {
                    (Delivery::Next, _) => (from, None),
                    overtaken @ (Delivery::Duplicate | Delivery::Gap, _) => return Ok(overtaken),
                }
            }
        };
        loop {
            let (next, last) = self.apply_part(&then, &from, cursor.as_deref()).await?;
            let Some(next) = next else {
                return Ok(self.table.deliver(delivery(&last)).await?);
            };
            // After a crash or a timeout, the next attempt resumes here.
            if let overtaken @ (Delivery::Duplicate | Delivery::Gap, _) =
                mark(&Changes::new(TABLE), &from, &next).await?
            {
                return Ok(overtaken);
            }
            cursor = Some(next);
        }
    }
}

impl FeedProjector {
    /// Returns the place of the oldest link that a following added. Without it, the end of a
    /// following would read every rating of its author.
    async fn find_oldest(&self, then: &Then) -> Result<String, ViewError> {
        let Then::Remove { follower, author, .. } = then else { return Ok(String::new()) };
        let follow = self
            .table
            .read::<Follow>(RowKey {
                partition: &feeds::followings_partition(follower),
                sort: author,
            })
            .await?;
        Ok(follow.and_then(|follow| follow.from).unwrap_or_default())
    }

    /// Does one page of the work, which may be repeated. Returns where the next page begins. If
    /// there is none, also returns the changes that are written with the position.
    async fn apply_part(
        &self,
        then: &Then,
        from: &str,
        cursor: Option<&str>,
    ) -> Result<(Option<String>, Changes), ViewError> {
        let mut last = Changes::new(TABLE);
        match then {
            Then::Deliver { author, place, link } => {
                let owner = feeds::followers(author);
                let page = self.table.page::<Follow>(&PageQuery::new(&owner, PAGE, cursor)).await?;
                let (follows, next) = page.whole()?;
                let entry = |follow: &Follow| {
                    Entry::new(&follow.entry, follow.following, author, place, link)
                };
                self.table.put_all(&follows.iter().map(entry).collect::<Vec<_>>()).await?;
                Ok((next, last))
            }
            Then::BringIn { follower, author, following } => {
                let owner = feeds::recent(author);
                let newest =
                    PageQuery { newest_first: true, ..PageQuery::new(&owner, RECENT, None) };
                let (links, next) = self.table.page::<Recent>(&newest).await?.whole()?;
                let entry = |recent: &Recent| {
                    Entry::new(follower, *following, author, &recent.entry, &recent.link)
                };
                self.table.put_all(&links.iter().map(entry).collect::<Vec<_>>()).await?;
                if let (Some(_), Some(oldest)) = (&next, links.last()) {
                    last.set(&feeds::followings_partition(follower), author, FROM, &*oldest.entry);
                }
                Ok((None, last))
            }
            Then::Remove { follower, author, following } => {
                let owner = feeds::recent(author);
                let newest =
                    PageQuery { newest_first: true, ..PageQuery::new(&owner, PAGE, cursor) };
                let (links, next) = self.table.page::<Recent>(&newest).await?.whole()?;
                let there = links.iter().filter(|recent| recent.entry.as_str() >= from);
                let key = |recent: &Recent| {
                    let entry =
                        Entry::new(follower, *following, author, &recent.entry, &recent.link);
                    (entry.owner, entry.entry)
                };
                let keys: Vec<_> = there.map(key).collect();
                self.table.delete_all(&keys).await?;
                // A page with an older link is the last one, because the following never added
                // older links.
                Ok((next.filter(|_| keys.len() == links.len()), last))
            }
        }
    }
}
