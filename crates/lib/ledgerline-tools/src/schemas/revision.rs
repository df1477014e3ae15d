//! The contract at a revision of git.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use super::{Documents, FOLDER, RELEASED};

/// Reads the contract at a revision, such as a tag, without the copy of a release. `root` is the
/// folder of the workspace, which may be a folder of a larger repository.
///
/// # Errors
/// When git does not know the revision, or the revision has no contract.
pub(super) fn contract(root: &Path, revision: &str) -> Result<Documents> {
    let commit = format!("{revision}^{{commit}}");
    let verify = ["rev-parse", "--verify", "--quiet", "--end-of-options", &commit];
    let Ok(commit) = git(root, &verify) else {
        if git(root, &["rev-parse", "--is-shallow-repository"])?.trim() == "true" {
            bail!(
                "`{revision}` is not in this clone, which is shallow: fetch it, with `git fetch \
                    --unshallow --tags`"
            );
        }
        bail!("`{revision}` is no revision of this repository: give a tag, a branch or a commit");
    };
    let commit = commit.trim();
    let folder = format!("./{FOLDER}/");
    let paths = git(root, &["ls-tree", "-r", "-z", "--name-only", commit, &folder])?;
    let mut documents = Documents::new();
    for path in paths.split_terminator('\0').map(PathBuf::from) {
        let inner = path.strip_prefix(FOLDER)?;
        let is_json = inner.extension().is_some_and(|extension| extension == "json");
        if !is_json || inner.starts_with(RELEASED) {
            continue;
        }
        let text = git(root, &["show", &format!("{commit}:./{}", path.display())])?;
        let document = serde_json::from_str(&text)
            .with_context(|| format!("{} at `{revision}`", path.display()))?;
        documents.insert(inner.to_owned(), document);
    }
    if documents.is_empty() {
        bail!("`{revision}` has no contract in `{FOLDER}`: give a revision that has one");
    }
    Ok(documents)
}

/// Returns what git prints.
fn git(folder: &Path, arguments: &[&str]) -> Result<String> {
    let folder = if folder == Path::new("") { Path::new(".") } else { folder };
    let output = Command::new("git").current_dir(folder).args(arguments).output().context("git")?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!("git {}: {}", arguments.join(" "), errors.trim());
    }
    Ok(String::from_utf8(output.stdout)?)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn commit(root: &Path) {
        let identity = ["-c", "user.name=test", "-c", "user.email=test@example.com"];
        git(root, &["add", "--all"]).unwrap();
        git(root, &[&identity[..], &["commit", "--quiet", "--message", "a"]].concat()).unwrap();
    }

    fn error(root: &Path, revision: &str) -> String {
        contract(root, revision).unwrap_err().to_string()
    }

    #[test]
    fn the_contract_at_a_revision_is_read_in_a_workspace_below_the_root_of_its_repository() {
        let repository = tempfile::tempdir().unwrap();
        let root = repository.path().join("shop");
        write(&root, "README.md", "a shop");
        git(repository.path(), &["init", "--quiet"]).unwrap();
        commit(&root);
        write(&root, "docs/schemas/rows/items.json", r#"{ "type": "object" }"#);
        write(&root, "docs/schemas/released/openapi.json", "{}");
        commit(&root);
        git(&root, &["tag", "v1"]).unwrap();
        write(&root, "docs/schemas/rows/items.json", "{}");
        commit(&root);

        let released = contract(&root, "v1").unwrap();
        assert_eq!(
            released,
            Documents::from([("rows/items.json".into(), json!({ "type": "object" }))])
        );
        assert_eq!(contract(&root, "HEAD").unwrap()[Path::new("rows/items.json")], json!({}));
        assert!(error(&root, "HEAD~2").contains("`HEAD~2` has no contract in `docs/schemas`"));
        assert!(error(&root, "v2").contains("`v2` is no revision of this repository"));

        let shallow = tempfile::tempdir().unwrap();
        let url = format!("file://{}", repository.path().display());
        let folder = shallow.path().display().to_string();
        git(&root, &["clone", "--quiet", "--depth", "1", &url, &folder]).unwrap();
        let shallow = shallow.path().join("shop");
        assert!(contract(&shallow, "HEAD").is_ok());
        let refused = error(&shallow, "v1");
        assert!(refused.contains("which is shallow: fetch it, with `git fetch"), "{refused}");
    }
}
