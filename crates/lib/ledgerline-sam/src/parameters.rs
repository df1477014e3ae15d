//! Compares the parameters that samconfig.toml sets with those of the template. SAM ignores a value
//! without a parameter in the template. A stack that sets a renamed parameter would silently get
//! the default.

use serde_json::Value;

use crate::template::{Source, samconfig};

/// Finds values of samconfig.toml without a parameter in the template, each with its table.
pub(crate) fn problems(source: &Source) -> Vec<String> {
    let config = samconfig(source.path()).unwrap_or_default();
    unknown(&config, &source.json()["Parameters"])
}

fn unknown(config: &toml::Table, parameters: &Value) -> Vec<String> {
    let mut problems = Vec::new();
    for (environment, commands) in config {
        for (command, settings) in commands.as_table().into_iter().flatten() {
            let overrides = settings.get("parameters").and_then(|of| of.get("parameter_overrides"));
            for name in overrides.map(names).unwrap_or_default() {
                if parameters[&name].is_null() {
                    let known: Vec<_> = parameters
                        .as_object()
                        .into_iter()
                        .flatten()
                        .map(|(name, _)| &**name)
                        .collect();
                    problems.push(format!(
                        "samconfig.toml: [{environment}.{command}.parameters] sets `{name}`, which \
                         is not a parameter of the template; choose one of: {}",
                        known.join(", ")
                    ));
                }
            }
        }
    }
    problems
}

/// The names in a value of `parameter_overrides`: a text or a list of `Name=value`. A value with
/// spaces is in quotation marks.
fn names(overrides: &toml::Value) -> Vec<String> {
    let text = match overrides.as_array() {
        Some(parts) => parts.iter().filter_map(toml::Value::as_str).collect::<Vec<_>>().join(" "),
        None => overrides.as_str().unwrap_or_default().to_owned(),
    };
    let outside = text.split('"').step_by(2).collect::<String>();
    let words = outside.split_whitespace();
    // The longer form is `ParameterKey=Name,ParameterValue=value`.
    let name = |word: &str| {
        let word = word.strip_prefix("ParameterKey=").unwrap_or(word);
        Some(word.split_once(['=', ','])?.0.to_owned())
    };
    words.filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_value_without_a_parameter_is_named_with_its_table() {
        let config = r#"
            version = 0.1
            [default.deploy.parameters]
            parameter_overrides = ["Environment=dev", "AlarmEmail=\"a b=c\""]
            [prod.deploy.parameters]
            parameter_overrides = "Environment=prod InSteps=true"
            [old.deploy.parameters]
            parameter_overrides = "ParameterKey=Old,ParameterValue=1"
        "#;
        let parameters = json!({ "AlarmEmail": {}, "Environment": {} });
        let mut found = unknown(&toml::from_str(config).unwrap(), &parameters);
        found.sort_unstable();
        assert_eq!(
            found,
            [("old", "Old"), ("prod", "InSteps")].map(|(environment, name)| format!(
                "samconfig.toml: [{environment}.deploy.parameters] sets `{name}`, which is not \
                 a parameter of the template; choose one of: AlarmEmail, Environment"
            ))
        );
    }
}
