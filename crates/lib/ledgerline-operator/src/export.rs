//! The export of commits into files, for analysis, and for a team that moves to another program.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    fs::{self, File},
    io::{BufWriter, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use clap::Args;
use flate2::{Compression, write::GzEncoder};
use jiff::Timestamp;
use ledgerline::Commit;
use ledgerline_dynamodb::ScanPart;
use serde_json::json;

use crate::{Output, deployment::Deployment};

/// The most files that are open at the same time.
const OPEN: usize = 64;
/// The most commits of a page.
const PAGE: i32 = 2_000;

/// The options of `ledger export`.
#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// Write into this folder, which must be new or empty.
    directory: PathBuf,
    /// Export commits since this time: 2026-11-24T09:30:00Z.
    #[arg(long, conflicts_with = "all", required_unless_present = "all")]
    since: Option<Timestamp>,
    /// Export all commits.
    #[arg(long)]
    all: bool,
}

/// Writes the commits into a file for each category and month. Returns `false` if a commit cannot be
/// read.
pub(crate) async fn run(
    deployment: &Deployment,
    ExportArgs { directory, since, .. }: &ExportArgs,
    out: Output,
) -> Result<bool> {
    let mut files = Files::create(directory)?;
    let (log, busy) = (deployment.log()?, out.busy("reading the log"));
    let (mut after, mut commits, mut damaged) = (None, 0, 0);
    loop {
        let page = log.scan(ScanPart::WHOLE, after.as_ref(), &[], PAGE).await?;
        damaged += page.damaged;
        for commit in page.commits.iter().filter(|commit| since.is_none_or(|it| it <= commit.at)) {
            files.write(commit)?;
            commits += 1;
        }
        after = page.after;
        if after.is_none() {
            break;
        }
    }
    let written = files.finish()?;
    drop(busy);
    let row = json!({ "commits": commits, "files": written, "damaged": damaged });
    out.rows(&["commits", "files", "damaged"], &[row]);
    Ok(damaged == 0)
}

/// The files of an export, by category and month.
struct Files {
    directory: PathBuf,
    open: BTreeMap<PathBuf, GzEncoder<BufWriter<File>>>,
    written: BTreeSet<PathBuf>,
}

impl Files {
    fn create(directory: &Path) -> Result<Self> {
        let place = || directory.display().to_string();
        fs::create_dir_all(directory).with_context(place)?;
        if fs::read_dir(directory).with_context(place)?.next().is_some() {
            bail!("`{}` has files: choose a new folder", place());
        }
        let (open, written) = (BTreeMap::new(), BTreeSet::new());
        Ok(Self { directory: directory.to_owned(), open, written })
    }

    /// Writes a commit as a line of a body object.
    fn write(&mut self, commit: &Commit) -> Result<()> {
        let folder = self.directory.join(commit.stream.category());
        let path = folder.join(format!("{}.jsonl.gz", commit.at.strftime("%Y-%m")));
        if self.open.len() == OPEN && !self.open.contains_key(&path) {
            self.close()?;
        }
        let file = match self.open.entry(path.clone()) {
            Entry::Occupied(open) => open.into_mut(),
            Entry::Vacant(place) => {
                let file = fs::create_dir_all(folder)
                    .and_then(|()| File::options().append(true).create(true).open(&path));
                let file = file.with_context(|| path.display().to_string())?;
                self.written.insert(path);
                place.insert(GzEncoder::new(BufWriter::new(file), Compression::default()))
            }
        };
        serde_json::to_writer(&mut *file, commit)?;
        Ok(file.write_all(b"\n")?)
    }

    /// Completes the open files. A later line begins another member of their gzip.
    fn close(&mut self) -> Result<()> {
        for encoder in std::mem::take(&mut self.open).into_values() {
            encoder.finish()?.flush()?;
        }
        Ok(())
    }

    /// Completes all files. Returns their number.
    fn finish(mut self) -> Result<usize> {
        self.close()?;
        Ok(self.written.len())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use flate2::read::MultiGzDecoder;
    use ledgerline::{StreamId, contract::commit};

    use super::*;

    #[test]
    fn each_category_has_a_file_for_each_month_with_a_commit_a_line() {
        let folder = tempfile::tempdir().unwrap();
        let stream = |category| StreamId::new(category, "north").unwrap();
        let tank = [commit(&stream("tank"), 1), commit(&stream("tank"), 2)];
        let later = Commit { at: "2027-01-31T23:59:59Z".parse().unwrap(), ..tank[0].clone() };
        let mut files = Files::create(folder.path()).unwrap();
        for commit in [&tank[0], &later, &commit(&stream("haul"), 1)] {
            files.write(commit).unwrap();
        }
        // With more months than files that may be open, the first ones are closed.
        for year in 0..OPEN {
            let at = format!("{:04}-01-01T00:00:00Z", 2_100 + year).parse().unwrap();
            files.write(&Commit { at, ..tank[0].clone() }).unwrap();
        }
        files.write(&tank[1]).unwrap();
        assert!(files.open.len() <= OPEN);
        assert_eq!(files.finish().unwrap(), 3 + OPEN);
        let file = File::open(folder.path().join("tank/2026-11.jsonl.gz")).unwrap();
        let mut lines = String::new();
        MultiGzDecoder::new(file).read_to_string(&mut lines).unwrap();
        let read: Vec<Commit> =
            lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(read, tank);
        assert!(folder.path().join("tank/2027-01.jsonl.gz").exists());
        assert!(folder.path().join("haul/2026-11.jsonl.gz").exists());
        let refused = Files::create(folder.path()).err().unwrap().to_string();
        assert!(refused.contains("has files: choose a new folder"), "{refused}");
    }
}
