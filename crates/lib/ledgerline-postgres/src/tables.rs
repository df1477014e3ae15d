//! The tables of a view: one schema of the database for each generation.

use std::sync::Arc;

use ledgerline::{
    manifest::{OtherView, ViewStore},
    view_store::ViewError,
};
use ledgerline_lambda::rebuild::Publication;
use tokio_postgres::{Row, types::Type};

use crate::database::{Database, Statement};

/// The tables of a view, at one generation. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct ViewTables {
    view: Arc<str>,
    columns: &'static [Column],
    has_positions: bool,
    /// The script of the view's author, for indexes. In it, `{generation}` stands for the schema.
    script: &'static str,
    /// The end of the script: the definition of the public view.
    public_view: Option<&'static str>,
    generation: u32,
    publication: Publication,
}

/// The first words of the definition of a public view, at the end of a script.
const PUBLIC_VIEW: &str = "CREATE OR REPLACE VIEW public.";
/// Limits the waits for locks in a transaction.
const WAIT_BRIEFLY: &str = "SELECT set_config('lock_timeout', '500ms', true)";

/// A column, which is part of the primary key or not.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Column {
    pub(crate) name: &'static str,
    pub(crate) definition: &'static str,
    pub(crate) is_key: bool,
}

/// The columns of a table of positions. Texts sort by their bytes, as sort keys of DynamoDB do.
const POSITIONS: &str = r#"stream text COLLATE "C" PRIMARY KEY, version bigint NOT NULL"#;

/// Selects the columns of a table: name, type, and whether the column is part of the primary key.
const SELECT_COLUMNS: &str = "SELECT a.attname::text, format_type(a.atttypid, a.atttypmod), \
    coalesce(a.attnum = ANY (i.indkey), false) \
    FROM pg_attribute a \
    LEFT JOIN pg_index i ON i.indrelid = a.attrelid AND i.indisprimary \
    WHERE a.attrelid = to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped \
    ORDER BY a.attnum";

impl ViewTables {
    /// Returns the tables of the view with this variable: those of `FILLS_TABLE` are named `fills`.
    pub(crate) fn new(
        variable: &str,
        columns: &'static [Column],
        has_positions: bool,
        script: &'static str,
    ) -> Self {
        let (script, public_view) = match script.find(PUBLIC_VIEW) {
            Some(place) => (&script[..place], Some(&script[place..])),
            None => (script, None),
        };
        Self {
            view: OtherView::new(ViewStore::Postgres, variable).name.as_ref().into(),
            columns,
            has_positions,
            script,
            public_view,
            generation: 0,
            publication: Publication::default(),
        }
    }

    pub(crate) fn at_generation(&self, generation: u32) -> Self {
        Self { generation, ..self.clone() }
    }

    fn schema(&self) -> String {
        format!("g{}", self.generation)
    }

    /// Returns the name of the table with the rows.
    pub(crate) fn rows(&self) -> String {
        qualify(self.generation, &self.view)
    }

    /// Returns the name of the table with the position in each stream.
    pub(crate) fn positions(&self) -> String {
        format!(r#"{}."{}_positions""#, self.schema(), self.view)
    }

    /// Creates the schema, the tables and the indexes of this generation, if the tables do not
    /// exist. A script that has changed since is for the next generation: an index on a table with
    /// rows takes longer than a function has, and locks the table meanwhile.
    ///
    /// # Errors
    /// When the database fails, or has a table of this name with other columns.
    pub(crate) async fn create(&self, database: &Database) -> Result<(), ViewError> {
        let rows = self.rows();
        let schema = self.schema();
        let values = &[(&rows as _, Type::TEXT)];
        let columns = database.run(Statement { sql: SELECT_COLUMNS, values }).await?;
        if columns.is_empty() {
            // Views that share the schema create it one after the other.
            let lock = Statement {
                sql: "SELECT pg_advisory_xact_lock(hashtext($1))",
                values: &[(&schema as _, Type::TEXT)],
            };
            let (transaction, _) = database.begin(&[lock]).await?;
            // Another instance may have created them.
            if transaction.run(Statement { sql: SELECT_COLUMNS, values }).await?.is_empty() {
                transaction.run_script(&self.definition()).await?;
            }
            return Ok(transaction.commit(&[]).await?);
        }
        let described = columns
            .into_iter()
            .map(|row| describe(&row.get::<_, String>(0), &row.get::<_, String>(1), row.get(2)));
        self.check(described.collect())
    }

    /// Whether this process has not published this generation, and has not failed to within the
    /// last minute.
    pub(crate) fn is_publish_due(&self) -> bool {
        self.public_view.is_some() && self.publication.is_due(self.generation)
    }

    /// Makes the public view show this generation. The comment of the view names the generation. A
    /// changed definition applies from the next generation on, whose rows have its fields.
    ///
    /// # Errors
    /// When the database fails, or refuses the definition. When no function has made the view.
    pub(crate) async fn publish(&self, database: &Database) -> Result<(), ViewError> {
        let Some(definition) = self.public_view else { return Ok(()) };
        let result = self.replace_public_view(database, definition).await;
        self.publication.remember(self.generation, result.is_ok());
        result
    }

    async fn replace_public_view(
        &self,
        database: &Database,
        definition: &str,
    ) -> Result<(), ViewError> {
        let name = format!(r#"public."{}""#, self.view);
        let schema = self.schema();
        let found = Statement {
            sql: "SELECT to_regclass($1) IS NOT NULL, \
                  coalesce(obj_description(to_regclass($1), 'pg_class'), '')",
            values: &[(&name as _, Type::TEXT)],
        };
        let comment = |rows: Vec<Row>| {
            let row = rows.first().filter(|row| row.get(0))?;
            Some(row.get::<_, String>(1))
        };
        if comment(database.run(found).await?).is_some_and(|comment| comment == schema) {
            return Ok(());
        }
        // A reader with an open transaction holds up the definition, and with it all rows. Two
        // instances that replace the view at the same time would fail.
        let wait = Statement { sql: WAIT_BRIEFLY, values: &[] };
        let lock = Statement {
            sql: "SELECT pg_advisory_xact_lock(hashtext($1))",
            values: &[(&name as _, Type::TEXT)],
        };
        let (transaction, _) = database.begin(&[wait, lock]).await?;
        let shown = comment(transaction.run(found).await?);
        let is_ours = |comment: &str| {
            comment.strip_prefix('g').is_some_and(|number| number.parse::<u32>().is_ok())
        };
        if shown.as_ref().is_some_and(|comment| !is_ours(comment)) {
            return Err(ViewError::Row(format!(
                "`{name}` exists, and no function has made it: rename or drop it"
            )));
        }
        if shown.is_none_or(|comment| comment != schema) {
            let definition = definition.replace("{generation}", &schema);
            // PostgreSQL cannot replace a view if a column is missing or has another type. The new
            // view has no grants.
            let replace = format!(
                "DO $publish$ BEGIN {definition} \
                 EXCEPTION WHEN invalid_table_definition THEN DROP VIEW {name}; {definition} \
                 END $publish$; COMMENT ON VIEW {name} IS '{schema}'"
            );
            transaction.run_script(&replace).await?;
        }
        Ok(transaction.commit(&[]).await?)
    }

    fn check(&self, found: Vec<String>) -> Result<(), ViewError> {
        let expected = self.columns.iter().map(|column| {
            let kind = column.definition.split(' ').next().unwrap_or_default();
            describe(column.name, kind, column.is_key)
        });
        let expected: Vec<_> = expected.collect();
        if found == expected {
            return Ok(());
        }
        Err(ViewError::Row(format!(
            "the table `{}` has the columns {}, and the view needs {}; rename or drop the table",
            self.rows(),
            found.join(", "),
            expected.join(", "),
        )))
    }

    /// Deletes the tables of this generation.
    ///
    /// # Errors
    /// When the database fails.
    pub(crate) async fn drop(&self, database: &Database) -> Result<(), ViewError> {
        let (transaction, _) = database.begin(&[]).await?;
        let rows = self.rows();
        let positions = self.positions();
        transaction.run_script(&format!("DROP TABLE IF EXISTS {rows}, {positions}")).await?;
        Ok(transaction.commit(&[]).await?)
    }

    fn definition(&self) -> String {
        let rows = self.rows();
        let schema = self.schema();
        let columns =
            self.columns.iter().map(|column| format!("\"{}\" {}", column.name, column.definition));
        let keys = self.columns.iter().filter(|column| column.is_key).map(|column| column.name);
        let positions = match self.has_positions {
            true => format!("CREATE TABLE IF NOT EXISTS {} ({POSITIONS});\n", self.positions()),
            false => String::new(),
        };
        format!(
            "CREATE SCHEMA IF NOT EXISTS {schema};\n\
             CREATE TABLE IF NOT EXISTS {rows} ({}, PRIMARY KEY ({}));\n{positions}{}",
            columns.collect::<Vec<_>>().join(", "),
            keys.collect::<Vec<_>>().join(", "),
            self.script.replace("{generation}", &schema),
        )
    }
}

/// Returns the name of the table with the rows of a view.
pub(crate) fn rows_of(view: &OtherView, generation: u32) -> String {
    qualify(generation, &view.name)
}

fn qualify(generation: u32, view: &str) -> String {
    format!(r#"g{generation}."{view}""#)
}

fn describe(name: &str, kind: &str, is_key: bool) -> String {
    format!("{name} {kind}{}", if is_key { " (key)" } else { "" })
}
