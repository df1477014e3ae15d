//! Checks that docs/reference/parameters.md has the parameters of the template.

use std::fmt::Write as _;

use ledgerline_sam::template;
use serde_json::Value;

use super::{deleted_applications, is_up_to_date, root};

/// The parameters that a first deployment sets, in the order of their importance.
const FIRST: [&str; 5] = ["Environment", "AlarmEmail", "RunbookUrl", "CallbackUrl", "JwtIssuer"];

fn row(parameters: &Value, name: &str) -> String {
    let parameter = &parameters[name];
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
    let default = match text(&parameter["Default"]) {
        none if none.is_empty() => none,
        default => format!("`{default}`"),
    };
    let allowed = parameter["AllowedValues"].as_array().map(|values| {
        let values: Vec<_> = values.iter().map(|value| format!("`{}`", text(value))).collect();
        values.join(" ")
    });
    let bound = |end: &str| parameter.get(end).map_or_else(String::new, text);
    let range = ["MinValue", "MaxValue"].map(bound);
    let values = match (allowed, range) {
        (Some(allowed), _) => allowed,
        (None, [least, most]) if least.is_empty() && most.is_empty() => String::new(),
        (None, [least, most]) => format!("{least} to {most}").trim().to_owned(),
    };
    let description = parameter["Description"].as_str().unwrap();
    format!("| `{name}` | {default} | {values} | {description} |")
}

/// `UPDATE_REFERENCE=1 cargo test -p xtask --test repository` writes the page.
#[test]
fn the_page_has_the_parameters_of_the_template() {
    let tree = template::tree(&root().join("template.yaml")).unwrap();
    let parameters = &tree["Parameters"];
    let mut page = String::from(
        "# Parameters of the template\n\n\
         `sam deploy --guided` asks for them, and `samconfig.toml` stores them. An empty default\n\
         means that the feature is off. Five of them matter on the first day:\n\n",
    );
    let head = "| parameter | default | values | meaning |\n|---|---|---|---|";
    let rows = |names: &mut dyn Iterator<Item = &str>| {
        names.map(|name| row(parameters, name)).collect::<Vec<_>>().join("\n")
    };
    writeln!(page, "{head}\n{}", rows(&mut FIRST.into_iter())).unwrap();
    let names = parameters.as_object().unwrap().keys().map(String::as_str);
    let rest = rows(&mut names.filter(|name| !FIRST.contains(name)));
    writeln!(page, "\nThe others have defaults for a small production system:\n\n{head}\n{rest}")
        .unwrap();
    // The parameters of a deleted application are deleted with it.
    let is_whole = deleted_applications().is_empty();
    is_up_to_date("docs/reference/parameters.md", &page, |line| {
        let name = line.strip_prefix("| `").and_then(|row| row.split_once('`'));
        is_whole || name.is_none_or(|(name, _)| !parameters[name].is_null())
    });
}
