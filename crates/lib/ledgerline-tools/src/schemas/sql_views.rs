//! Public views: SQL views over rows in PostgreSQL, with one typed column for each field of a row.
//! They are for people and their tools. The functions read the rows themselves.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use serde_json::Value;

use super::Documents;

/// The line above the generated end of a script.
const GENERATED: &str =
    "-- `cargo xtask schemas` writes this public view from the type of the rows.\n";

/// A script whose generated end is stale, and its correct text.
pub(super) struct StaleScript {
    pub(super) path: PathBuf,
    pub(super) text: String,
}

/// Returns the scripts of views, `crates/apps/*/model/src/views/*.sql`, whose end is stale.
///
/// # Errors
/// When a script cannot be read, or no row has its name.
pub(super) fn stale_scripts(root: &Path, documents: &Documents) -> Result<Vec<StaleScript>> {
    let mut stale = Vec::new();
    for application in fs::read_dir(root.join("crates/apps"))?.collect::<Result<Vec<_>, _>>()? {
        let Ok(files) = fs::read_dir(application.path().join("model/src/views")) else { continue };
        for file in files.collect::<Result<Vec<_>, _>>()? {
            let path = file.path();
            if path.extension().is_none_or(|extension| extension != "sql") {
                continue;
            }
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            // The names of rows may have dashes.
            let rows = [name.clone(), name.replace('_', "-")];
            let mut rows = rows
                .iter()
                .filter_map(|name| documents.get(Path::new(&format!("rows/{name}.json"))));
            let schema = rows
                .next()
                .with_context(|| format!("{}: no row has the name `{name}`", path.display()))?;
            let script = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            let (handwritten, generated) = script.split_once(GENERATED).unwrap_or((&script, ""));
            let view = view(&name, schema, generated);
            let text = format!("{}\n\n{GENERATED}{view}", handwritten.trim_end());
            let text = text.trim_start().to_owned();
            if text != script {
                stale.push(StaleScript { path, text });
            }
        }
    }
    Ok(stale)
}

/// Returns the definition of the view with this name. A forgotten row of a state view is null. The
/// columns keep the order of the previous definition: PostgreSQL replaces a view only if new
/// columns follow the others.
fn view(name: &str, schema: &Value, previous: &str) -> String {
    let place = |field: &str| {
        let place = previous.find(&format!("AS \"{}\"", snake_case(field)));
        place.unwrap_or(usize::MAX)
    };
    let mut fields: Vec<_> = schema["properties"].as_object().into_iter().flatten().collect();
    fields.sort_by_key(|(field, _)| place(field));
    let mut columns: Vec<_> =
        fields.into_iter().map(|(field, schema)| column(field, schema)).collect();
    if columns.is_empty() {
        columns.push("row".to_owned());
    }
    format!(
        "CREATE OR REPLACE VIEW public.\"{name}\" AS SELECT\n  {}\n\
         FROM {{generation}}.\"{name}\" WHERE row IS NOT NULL;\n",
        columns.join(",\n  ")
    )
}

fn column(field: &str, schema: &Value) -> String {
    let key = field.replace('\'', "''");
    let name = snake_case(field);
    match sql_type(schema) {
        Some("text") => format!("row ->> '{key}' AS \"{name}\""),
        Some(kind) => format!("(row ->> '{key}')::{kind} AS \"{name}\""),
        None => format!("row -> '{key}' AS \"{name}\""),
    }
}

/// Returns the type of a field's column; `None` for JSON.
fn sql_type(schema: &Value) -> Option<&'static str> {
    if let Some(variants) = schema["oneOf"].as_array().or(schema["anyOf"].as_array()) {
        let mut types = variants.iter().filter(|variant| variant["type"] != "null").map(sql_type);
        let first = types.next()??;
        return types.all(|kind| kind == Some(first)).then_some(first);
    }
    let types = match schema["type"].as_array() {
        Some(types) => types.iter().filter(|kind| **kind != "null").collect(),
        None => vec![&schema["type"]],
    };
    let [kind] = types[..] else { return None };
    let format = schema["format"].as_str().unwrap_or_default();
    match (kind.as_str()?, format) {
        ("string", "date") => Some("date"),
        ("string", "date-time") => Some("timestamptz"),
        ("string", _) => Some("text"),
        // An unsigned number of 64 bits may be too large for a bigint.
        ("integer", "uint64" | "uint" | "uint128" | "int128" | "") => Some("numeric"),
        ("integer", _) => Some("bigint"),
        ("number", _) => Some("double precision"),
        ("boolean", _) => Some("boolean"),
        _ => None,
    }
}

/// Returns a name that needs no quotes in SQL, unless it is a word of SQL.
fn snake_case(field: &str) -> String {
    let mut name = String::new();
    for character in field.chars() {
        if character.is_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.extend(character.to_lowercase().filter(|it| *it != '"'));
    }
    name
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_script_keeps_its_beginning_and_its_end_follows_the_row() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("crates/apps/water/model/src/views");
        fs::create_dir_all(&folder).unwrap();
        let script = folder.join("fills.sql");
        fs::write(&script, "CREATE INDEX;\n").unwrap();
        let kind = json!({ "oneOf": [{ "const": "in", "type": "string" },
                                     { "const": "out", "type": "string" }] });
        let schema = json!({ "properties": {
            "filledOn": { "type": ["string", "null"], "format": "date" },
            "at": { "type": "string", "format": "date-time" },
            "kind": { "anyOf": [kind, { "type": "null" }] },
            "mixed": { "anyOf": [kind, { "type": "integer", "format": "int64" }] },
            "order": { "type": "integer", "format": "int64" },
            "version": { "type": "integer", "format": "uint64", "minimum": 0 },
            "tags": { "type": "array" },
            "isFull": { "type": "boolean" },
        } });
        let documents = Documents::from([("rows/fills.json".into(), schema)]);
        let [stale_script] = &stale_scripts(root.path(), &documents).unwrap()[..] else { panic!() };
        let expected = "CREATE INDEX;\n\n\
            -- `cargo xtask schemas` writes this public view from the type of the rows.\n\
            CREATE OR REPLACE VIEW public.\"fills\" AS SELECT\n  \
              (row ->> 'at')::timestamptz AS \"at\",\n  \
              (row ->> 'filledOn')::date AS \"filled_on\",\n  \
              (row ->> 'isFull')::boolean AS \"is_full\",\n  \
              row ->> 'kind' AS \"kind\",\n  \
              row -> 'mixed' AS \"mixed\",\n  \
              (row ->> 'order')::bigint AS \"order\",\n  \
              row -> 'tags' AS \"tags\",\n  \
              (row ->> 'version')::numeric AS \"version\"\n\
            FROM {generation}.\"fills\" WHERE row IS NOT NULL;\n";
        assert_eq!(stale_script.text, expected);
        fs::write(&script, &stale_script.text).unwrap();
        assert!(stale_scripts(root.path(), &documents).unwrap().is_empty());
        // A new column follows the others, so that PostgreSQL can replace the view.
        let without = "  (row ->> 'at')::timestamptz AS \"at\",\n";
        fs::write(&script, stale_script.text.replace(without, "")).unwrap();
        let [newer] = &stale_scripts(root.path(), &documents).unwrap()[..] else { panic!() };
        let last = "AS \"version\",\n  (row ->> 'at')::timestamptz AS \"at\"\nFROM";
        assert!(newer.text.contains(last), "{}", newer.text);
        fs::write(folder.join("unknown.sql"), "").unwrap();
        assert!(stale_scripts(root.path(), &documents).is_err());
    }
}
