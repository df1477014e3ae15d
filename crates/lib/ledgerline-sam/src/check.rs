//! Compares the manifests of functions with the template, in both directions. A missing part fails
//! at the first request that needs it. A surplus is a needless right, an event that no function
//! consumes, or a table that costs money.

mod declared_metrics;
mod operator_rights;
mod roles;
mod sources;
mod tables;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use ledgerline::manifest::{Manifest, Manifests};
use serde_json::Value;

use crate::{
    functions::Template,
    generate,
    lookup::{binary, list, resources},
    manifests, rules,
    template::Source,
};

/// Runs functions to get their manifests. The keys are the names of the functions, and the values
/// are the paths of their programs.
///
/// # Errors
/// When a function cannot be run, or does not print a manifest.
pub fn manifests(programs: &BTreeMap<String, PathBuf>) -> Result<Manifests> {
    let ask = |(name, program): (&String, &PathBuf)| {
        // The development binary has the handlers of all functions, and chooses one by this
        // variable of Lambda.
        let output =
            Command::new(program).arg("--manifest").env("AWS_LAMBDA_FUNCTION_NAME", name).output();
        let output = output.with_context(|| format!("cannot run {}", program.display()))?;
        if !output.status.success() {
            bail!("{name} --manifest ended with {}", output.status);
        }
        let manifest: Manifest = serde_json::from_slice(&output.stdout)
            .with_context(|| format!("{name} --manifest prints no valid manifest"))?;
        manifest.validate().with_context(|| format!("the manifest of `{name}`"))?;
        Ok((name.clone(), manifest))
    };
    programs.iter().map(ask).collect()
}

/// Builds the functions of a template, and runs them to get their manifests. With `own_binaries`,
/// the functions' own binaries run, and otherwise the development binary, if there is one.
///
/// # Errors
/// When they do not build, or as those of [`manifests()`].
pub fn manifests_of(source: &Source, root: &Path, own_binaries: bool) -> Result<Manifests> {
    // This reads JSON, because in a template with stale lists the roles of some functions are
    // missing.
    let json = source.json();
    let functions = resources(&json, &["AWS::Serverless::Function"]);
    let mut binaries = Vec::new();
    for (id, function) in functions {
        if binary(function).is_empty() {
            bail!(
                "{}: {id} needs Metadata.BuildProperties.Binary",
                source.place(&["Resources", id])
            );
        }
        binaries.push(binary(function));
    }
    manifests(&crate::build::functions(root, &binaries, own_binaries)?)
}

/// Builds the functions of the workspace or package at `root`, and runs them to get their
/// manifests. `own_binaries` is as in [`manifests_of`].
///
/// # Errors
/// As those of [`manifests_of`].
pub fn manifests_in(root: &Path, own_binaries: bool) -> Result<Manifests> {
    let names = crate::build::function_names(root)?;
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    manifests(&crate::build::functions(root, &names, own_binaries)?)
}

/// Finds all problems of a template: differences from the manifests of its functions, and those of
/// [`rules::problems`]. `runbook` is the text with an entry for each alarm.
#[must_use]
pub fn problems(source: &Source, manifests: &Manifests, runbook: &str) -> Vec<String> {
    let (mut problems, source) = wired(source, manifests);
    problems.extend(compared(&source, manifests));
    problems.extend(ungrouped(&source));
    problems.extend(declared_metrics::problems(&source, manifests));
    problems.extend(rules::problems(&source, runbook));
    problems
}

/// Finds the differences between a template and the manifests of its functions.
#[must_use]
pub fn wiring(source: &Source, manifests: &Manifests) -> Vec<String> {
    let (problems, source) = wired(source, manifests);
    [problems, compared(&source, manifests)].concat()
}

/// Returns a problem for each stale generated block, and the template with all blocks rewritten.
/// The rest of the check reads that template, so it does not report the consequences of a stale
/// block.
fn wired(source: &Source, manifests: &Manifests) -> (Vec<String>, Source) {
    match generate::write_blocks(source, manifests) {
        Ok(generate::Rewrite { source: wired, stale }) => {
            let problem = |(line, name): (usize, String)| {
                let place = source.line(line);
                format!("{place}: the generated block `{name}` differs from the manifests: {WIRE}")
            };
            (stale.into_iter().map(problem).collect(), wired)
        }
        Err(error) => (vec![error.to_string()], source.clone()),
    }
}

/// The remedy for a difference that `cargo xtask wire` repairs.
const WIRE: &str = "run `cargo xtask wire`";

fn compared(source: &Source, manifests: &Manifests) -> Vec<String> {
    let json = source.json();
    let template = Template::new(source, &json, manifests);
    let binaries =
        resources(&json, &["AWS::Serverless::Function"]).map(|(_, function)| binary(function));
    let binaries: BTreeSet<_> = binaries.filter(|binary| !binary.is_empty()).collect();
    let unknown = binaries.iter().filter(|binary| !manifests.contains_key(**binary));
    let unknown = unknown.map(|binary| format!("`{binary}` has no manifest: {WIRE}"));
    let left = manifests.keys().filter(|binary| !binaries.contains(binary.as_str()));
    let left = left.map(|binary| {
        format!("no function of the template runs `{binary}`, which has a manifest: {WIRE}")
    });
    let mut problems: Vec<_> = unknown.chain(left).collect();
    problems.extend(deployed(source, &json, manifests));
    problems.extend(urls(source, &template));
    problems.extend(sources::problems(&template));
    problems.extend(tables::problems(&template));
    problems.extend(roles::problems(&template));
    problems.extend(operator_rights::problems(&template));
    problems
}

/// Finds a difference between the manifests in the metadata and those of the functions. The
/// operator's tool would use the wrong manifests in an incident.
fn deployed(source: &Source, json: &Value, manifests: &Manifests) -> Option<String> {
    if json["Metadata"]["Ledgerline"].is_null() {
        return None;
    }
    let is_same =
        manifests::in_template(json).is_ok_and(|deployed| deployed.as_ref() == Some(manifests));
    let place = source.place(&["Metadata", "Ledgerline", "Manifests"]);
    (!is_same).then(|| {
        format!("{place}: the manifests in Metadata.Ledgerline differ from manifest.json: {WIRE}")
    })
}

/// Finds differences between the loop over URLs and the functions that need a URL. A function that
/// shows the commits of all streams must have none, because a URL has no scopes.
fn urls(source: &Source, template: &Template<'_>) -> Vec<String> {
    const URLS: &str = "Urls";
    let Some(written) = source.names_of_loop(URLS) else { return Vec::new() };
    let wanted = generate::names(template, URLS).unwrap_or_default();
    let place = source.place(&["Resources"]);
    let missing = wanted.iter().filter(|name| !written.contains(name));
    let missing = missing.map(|name| format!("{place}: the loop {URLS} lacks {name}"));
    let surplus = written.iter().filter(|name| !wanted.contains(name));
    let surplus = surplus.map(|name| {
        format!("{place}: the loop {URLS} has {name}, which gets no URL: delete the name")
    });
    missing.chain(surplus).collect()
}

/// Finds parameters that no group names. The console shows them after all others. A template may
/// have no groups.
fn ungrouped(source: &Source) -> Vec<String> {
    let json = source.json();
    let groups = &json["Metadata"]["AWS::CloudFormation::Interface"]["ParameterGroups"];
    let groups = list(groups).into_iter().flat_map(|group| list(&group["Parameters"]));
    let grouped: BTreeSet<_> = groups.filter_map(Value::as_str).collect();
    let parameters = json["Parameters"].as_object().into_iter().flatten().map(|(name, _)| name);
    let missing = parameters.filter(|name| !grouped.is_empty() && !grouped.contains(name.as_str()));
    let problem = |name: &String| {
        let place = source.place(&["Parameters", name]);
        format!("{place}: {name}: no group of AWS::CloudFormation::Interface has the parameter")
    };
    missing.map(problem).collect()
}

#[cfg(test)]
mod tests {
    use ledgerline::manifest::{Call, Source as Events};

    use super::*;
    use crate::tests::{BY_HAND, TANKS};

    fn tanks() -> Manifests {
        manifests::read_file(
            &Path::new(env!("CARGO_MANIFEST_DIR")).join("../ledgerline-tank/template.yaml"),
        )
        .unwrap()
    }

    /// The template of the tanks with one text in place of another.
    fn with(text: &str, other: &str) -> Source {
        replaced(&TANKS, text, other)
    }

    fn replaced(template: &Source, text: &str, other: &str) -> Source {
        assert!(template.text().contains(text), "{text}");
        template.rewritten(&template.text().replacen(text, other, 1), Vec::new()).unwrap()
    }

    /// The manifests of the tanks, in which the fanout makes one more call.
    fn calling(action: &'static str, variable: &'static str) -> Manifests {
        let mut manifests = tanks();
        let fanout = manifests.get_mut("tank-fanout").unwrap();
        fanout.calls.push(Call { action: action.into(), variable: variable.into() });
        manifests
    }

    #[test]
    fn a_call_of_an_unknown_resource_justifies_no_right_on_a_table() {
        let manifests = calling("dynamodb:PutItem", "EVENT_SOURCE");
        let end = "              # </generated>\n\n  FanoutDeadLetterQueue:";
        let put = "              - { Effect: Allow, Action: dynamodb:PutItem, Resource: \"arn:aws:dynamodb:us-east-1:1:table/t-CommitsTable\" }\n";
        let source = replaced(&BY_HAND, end, &end.replacen("\n\n", &format!("\n{put}\n"), 1));
        let found = wiring(&source, &manifests).join("\n");
        assert!(
            found.contains("FanoutFunction does not need dynamodb:PutItem on arn:aws"),
            "{found}"
        );
    }

    #[test]
    fn an_action_in_besides_that_the_role_lacks_is_reported() {
        let role = "  FanoutRole:\n    Type: AWS::IAM::Role\n";
        let besides =
            format!("{role}    Metadata: {{ Ledgerline: {{ Besides: [kms:Decrypt] }} }}\n");
        let found = wiring(&replaced(&BY_HAND, role, &besides), &tanks()).join("\n");
        assert!(
            found.contains("FanoutRole: Besides names kms:Decrypt, which the role does not allow"),
            "{found}"
        );
    }

    #[test]
    fn a_subscriber_that_no_operator_may_invoke_is_reported() {
        let text = TANKS.text().replace("StockSubscriptionFunction", "StockFunction");
        let source = TANKS.rewritten(&text, Vec::new()).unwrap();
        let found = problems(&source, &tanks(), "").join("\n");
        assert!(found.contains("StockFunction: OperatorPolicy does not allow the tool"), "{found}");
        assert!(!found.contains("HaulFunction: OperatorPolicy"), "{found}");
        assert_eq!(wiring(&TANKS, &tanks()), [""; 0]);
    }

    #[test]
    fn two_command_functions_of_one_category_have_one_name_in_the_loop() {
        let mut manifests = tanks();
        let tanks = manifests["tank-commands"].clone();
        manifests.get_mut("haul-commands").unwrap().tables = tanks.tables;
        let wired = generate::write_blocks(&TANKS, &manifests).unwrap().source;
        assert!(wired.text().contains("# <generated Commands>\n    - - tank\n    # </generated>"));
    }

    #[test]
    fn a_function_with_a_role_of_its_own_is_in_no_loop_of_roles() {
        let function = "      Role: !GetAtt haulCommandsRole.Arn\n";
        let own =
            "  HaulerRole: { Type: AWS::IAM::Role, Properties: { Policies: [] } }\n\nOutputs:\n";
        let text = with(function, "      Role: !GetAtt HaulerRole.Arn\n").text().replacen(
            "\nOutputs:\n",
            own,
            1,
        );
        let wired = generate::write_blocks(&TANKS.rewritten(&text, Vec::new()).unwrap(), &tanks())
            .unwrap()
            .source;
        assert!(wired.text().contains("# <generated Commands>\n    - - tank\n    # </generated>"));
    }

    #[test]
    fn a_role_that_needs_no_statement_has_no_policy() {
        let mut manifests = tanks();
        let queries = manifests.get_mut("tank-queries").unwrap();
        *queries = Manifest::new(Events::Http(queries.endpoints().to_vec()));
        let wired = generate::write_blocks(&TANKS, &manifests).unwrap().source;
        let role = "      ManagedPolicyArns: [!Ref LogsAndTraces]\n  # </generated>\n";
        assert_eq!(wired.text().matches(role).count(), 1);
    }

    #[test]
    fn grants_of_a_role_that_needs_no_statement_are_refused_with_a_remedy() {
        let mut manifests = tanks();
        *manifests.get_mut("tank-fanout").unwrap() = Manifest::new(Events::Schedule);
        let error = generate::write_blocks(&BY_HAND, &manifests).unwrap_err().to_string();
        assert!(error.contains("`FanoutRole` needs no statement: delete the policy"), "{error}");
    }

    #[test]
    fn a_role_with_statements_of_its_own_has_its_grants_generated() {
        assert_eq!(wiring(&BY_HAND, &tanks()), Vec::<String>::new());
    }

    #[test]
    fn a_function_without_a_binary_is_an_error_that_names_it() {
        let source = with(
            "    Metadata: { BuildMethod: rust-cargolambda, BuildProperties: { Binary: tank-fanout } }\n",
            "",
        );
        let error = manifests_of(&source, Path::new("."), true).unwrap_err().to_string();
        assert!(error.ends_with("FanoutFunction needs Metadata.BuildProperties.Binary"), "{error}");
    }
}
