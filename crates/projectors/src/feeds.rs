//! The feeds: what a commit comes to is in [`read_models::feeds`]; here it is done, in as many writes as it takes.

use event_store::Commit;
use lambda_kit::fifo::{ApplyError, Consumer};
use read_models::{
    Changes,
    feeds::{self, Entry, Follow, RECENT, Recent, TABLE, Then},
    guard::{Verdict, judge},
};
use read_models_dynamodb::{PageQuery, ReadTable, TableError};

/// Rows that are read at once: bounds what is done between two marks of how far it is (rule 11).
const PAGE: i32 = 1_000;

/// Writes the feeds.
#[derive(Debug)]
pub struct FeedProjector {
    /// Where the rows are.
    pub table: ReadTable,
}

impl Consumer for FeedProjector {
    async fn take(&self, commit: &Commit) -> Result<(Verdict, u64), ApplyError> {
        let work = feeds::work(commit).map_err(|source| ApplyError::decode(commit, source))?;
        let (stream, version) = (commit.stream.as_str(), commit.version);
        let Some(then) = work.then else {
            return Ok(self.table.apply(&TABLE, stream, version, &work.changes).await?);
        };
        let (position, progress) = self.table.progress(&TABLE, stream).await?;
        let verdict = judge(position, version);
        if verdict != Verdict::Apply {
            return Ok((verdict, position));
        }
        let mark = async |changes: &Changes, progress: String| {
            self.table.begin(&TABLE, stream, version, changes, Some(progress)).await
        };
        let mut cursor = match progress {
            // Begun before, and interrupted there.
            Some(cursor) => Some(cursor).filter(|cursor| !cursor.is_empty()),
            None => match mark(&work.changes, String::new()).await? {
                (Verdict::Apply, _) => None,
                overtaken @ (Verdict::Skip | Verdict::Gap, _) => return Ok(overtaken),
            },
        };
        loop {
            cursor = self.part(&then, cursor.as_deref()).await?;
            let Some(cursor) = &cursor else { break };
            // Whoever comes after a crash, or after this function's time is up, goes on from here.
            if let overtaken @ (Verdict::Skip | Verdict::Gap, _) =
                mark(&Changes::new(TABLE), cursor.clone()).await?
            {
                return Ok(overtaken);
            }
        }
        Ok(self.table.apply(&TABLE, stream, version, &Changes::new(TABLE)).await?)
    }
}

impl FeedProjector {
    /// Does one page of it, which may be done again, and says where the next one begins.
    async fn part(&self, then: &Then, cursor: Option<&str>) -> Result<Option<String>, TableError> {
        match then {
            Then::Deliver { author, place, link } => {
                let owner = feeds::followers(author);
                let page = self.table.page::<Follow>(&rows(&owner, PAGE, cursor)).await?;
                let entry =
                    |follow: &Follow| Entry::new(&follow.entry, follow.following, author, place, link);
                self.table.put_all(&page.rows.iter().map(entry).collect::<Vec<_>>()).await?;
                Ok(page.cursor)
            }
            Then::BringIn { follower, author, following } => {
                let owner = feeds::recent(author);
                let newest = PageQuery { newest_first: true, ..rows(&owner, RECENT, None) };
                let page = self.table.page::<Recent>(&newest).await?;
                let entry =
                    |recent: &Recent| Entry::new(follower, *following, author, &recent.entry, &recent.link);
                self.table.put_all(&page.rows.iter().map(entry).collect::<Vec<_>>()).await?;
                Ok(None)
            }
            Then::Remove { follower, author, following } => {
                let owner = feeds::recent(author);
                let page = self.table.page::<Recent>(&rows(&owner, PAGE, cursor)).await?;
                let key = |recent: &Recent| {
                    let entry = Entry::new(follower, *following, author, &recent.entry, &recent.link);
                    (entry.owner, entry.entry)
                };
                self.table.delete_all(&TABLE, &page.rows.iter().map(key).collect::<Vec<_>>()).await?;
                Ok(page.cursor)
            }
        }
    }
}

/// Rows of one partition, read strongly.
fn rows<'a>(owner: &'a str, limit: i32, cursor: Option<&'a str>) -> PageQuery<'a> {
    PageQuery {
        index: None,
        partition: (TABLE.partition, owner),
        keys: &[TABLE.sort],
        starts_with: None,
        newest_first: false,
        limit,
        cursor,
    }
}
