//! The deployed template, and the manifests of the functions in it. The tool needs no workspace for
//! them.

use std::path::Path;

use anyhow::{Context, Result, bail};
use ledgerline::manifest::Manifests;
use ledgerline_sam::{manifests, template::Source};
use serde_json::Value;

use crate::{Stack, deployment::Deployment};

/// The template of the stack, and the manifests of its functions.
#[derive(Debug)]
pub(crate) struct Deployed {
    /// The template, before SAM transformed it.
    pub(crate) template: Value,
    /// The manifests, by the names of the functions' binaries.
    pub(crate) manifests: Manifests,
}

impl Deployed {
    /// Reads both from the stack. Prints the functions whose manifests differ from those of the
    /// workspace.
    pub(crate) async fn read(deployment: &Deployment, stack: &Stack) -> Result<Self> {
        let template = template(deployment).await?;
        let manifests = parse_manifests(&template)?;
        let differing = differing_functions(&manifests, &stack.template)?;
        if !differing.is_empty() {
            eprintln!(
                "the manifests of the stack differ from those in the template of this workspace: {}",
                differing.join(", ")
            );
        }
        Ok(Self { template, manifests })
    }
}

/// Returns the template as it was deployed.
pub(crate) async fn template(deployment: &Deployment) -> Result<Value> {
    let text = deployment.deployed_template().await?;
    Ok(Source::parse(&text, Path::new("the deployed template"))?.json())
}

/// Returns the manifests in a deployed template.
pub(crate) fn parse_manifests(template: &Value) -> Result<Manifests> {
    let hint = "deploy the template that `cargo xtask wire` makes";
    let manifests = manifests::in_template(template);
    match manifests.with_context(|| format!("the stack's manifests cannot be read: {hint}"))? {
        Some(manifests) => Ok(manifests),
        None => bail!("the template of the stack has no manifests: {hint}"),
    }
}

/// Returns the functions whose manifests differ from those of the workspace with this template;
/// none if there is no workspace, or the template is of another kind.
///
/// # Errors
/// When the workspace's template cannot be read.
pub(crate) fn differing_functions(deployed: &Manifests, template: &Path) -> Result<Vec<String>> {
    if !template.exists() {
        return Ok(Vec::new());
    }
    let ours = manifests::in_template(&Source::read(template)?.json())?;
    Ok(ours.map_or(Vec::new(), |ours| manifests::changed_functions(&ours, deployed)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_stack_without_manifests_is_refused_with_a_remedy() {
        let unreadable = json!({ "Metadata": { "Ledgerline": { "Manifests": { "x": "{" } } } });
        for template in [json!({ "Resources": {} }), unreadable] {
            let error = parse_manifests(&template).unwrap_err().to_string();
            assert!(error.contains("`cargo xtask wire`"), "{error}");
        }
    }

    /// An operator may run the tool in the folder of another project.
    #[test]
    fn a_template_without_manifests_is_compared_with_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let template = folder.path().join("template.yaml");
        let schedule = serde_json::from_str(r#"{"source":"schedule"}"#).unwrap();
        let deployed = Manifests::from([("nightly".to_owned(), schedule)]);
        for (text, expected) in [
            ("Resources: {}\n", &[][..]),
            ("Metadata: { Ledgerline: { Manifests: {} } }\nResources: {}\n", &["nightly"]),
        ] {
            std::fs::write(&template, text).unwrap();
            assert_eq!(differing_functions(&deployed, &template).unwrap(), expected);
        }
    }

    #[test]
    fn a_text_of_the_stack_does_not_steer_the_terminal() {
        let manifests = json!({ "x": "{\"\\u001b[2JPWNED\":1}" });
        let template = json!({ "Metadata": { "Ledgerline": { "Manifests": manifests } } });
        let error = format!("{:#}", parse_manifests(&template).unwrap_err());
        let printed = crate::escape_controls(&error);
        assert!(error.contains('\u{1b}') && printed.contains("\\u{1b}[2JPWNED"), "{printed}");
        assert!(!printed.contains('\u{1b}'));
    }
}
