//! Reads `template.yaml` as CloudFormation and SAM do, as far as the local stack runs it. An
//! unknown part is an error with its line. Otherwise the local stack would differ from the deployed
//! stack.

mod distribution;
mod intrinsics;
mod model;
mod principals;
mod resources;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;

use self::intrinsics::Scope;
pub use self::model::{
    Bucket, Client, Cors, DeadLetterConfig, Destination, DestinationConfig, DestinationType,
    Distribution, Event, Filter, FilterCriteria, Function, InvokeConfig, ObjectRule, PolicyHeader,
    Queue, QueueSource, Resource, ResponseType, RetryPolicy, Role, RuleSource, ScalingConfig,
    StartingPosition, StreamSource, Table, Template,
};
pub(crate) use self::resources::OPERATORS;
use crate::yaml::{self, Node};

/// The account of the emulated services.
pub const ACCOUNT: &str = "000000000000";
/// The region of the emulated services.
pub const REGION: &str = "us-east-1";
/// The parameter that adds the web app to a stack, if its template has the parameter.
pub const WEB_APP: &str = "WebApp";
/// The name of a local stack without samconfig.toml.
pub const STACK: &str = "ledgerline";

/// The name of the stack in the samconfig.toml beside a template, if there is one: `stack_name` of
/// the environment `default`.
#[must_use]
pub fn stack_name(template: &Path) -> Option<String> {
    let config = samconfig(template)?;
    let named = |command: &str| {
        let name = config.get("default")?.get(command)?.get("parameters")?.get("stack_name")?;
        name.as_str().map(ToOwned::to_owned)
    };
    // The parameters of a command override those of all commands, and `sam deploy --guided` writes
    // the parameters of a command.
    named("deploy").or_else(|| named("global"))
}

/// The samconfig.toml beside a template; `None` if it is missing or cannot be read.
pub(crate) fn samconfig(template: &Path) -> Option<toml::Table> {
    let folder = template.parent().unwrap_or(Path::new(""));
    toml::from_str(&fs::read_to_string(folder.join("samconfig.toml")).ok()?).ok()
}

/// An error in a template, with its place.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// The file is missing, or cannot be read.
    #[error("cannot read the template {path}: {source}", path = path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// A part of the template is wrong or not emulated.
    #[error("{path}:{line}: {message}", path = path.display())]
    Wrong {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The description of the problem.
        message: String,
    },
}

/// The text in [`Source::statements`] for a value that has no name on a laptop. It matches any name.
pub(crate) const UNREAD: &str = "?*";

type Located<T> = Result<T, (usize, String)>;

/// A template whose functions are not resolved. The short forms of functions, such as `!Ref`, are
/// in their long form.
#[derive(Debug, Clone)]
pub struct Source {
    path: PathBuf,
    text: String,
    root: Node,
    /// The name of the local stack, which is the prefix of the names of its tables and queues.
    stack: String,
}

impl Source {
    /// Reads a template from a file.
    ///
    /// # Errors
    /// With the line, when the file is missing or no YAML.
    pub fn read(path: &Path) -> Result<Self, TemplateError> {
        let text = fs::read_to_string(path)
            .map_err(|source| TemplateError::Unreadable { path: path.to_owned(), source })?;
        Self::parse(&text, path)
    }

    /// Reads a template from a text. Errors name the path, and the samconfig.toml beside it names
    /// the stack.
    ///
    /// # Errors
    /// As those of [`Source::read`].
    pub fn parse(text: &str, path: &Path) -> Result<Self, TemplateError> {
        let stack = stack_name(path).unwrap_or_else(|| STACK.to_owned());
        let wrong = |(line, message)| TemplateError::Wrong { path: path.to_owned(), line, message };
        let root = yaml::parse(text).map_err(wrong)?;
        Ok(Self { path: path.to_owned(), text: text.to_owned(), root, stack })
    }

    /// The path of the file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The text of the template.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The name of the local stack, which is the prefix of the names of its tables and queues.
    #[must_use]
    pub fn stack(&self) -> &str {
        &self.stack
    }

    /// Renames the local stack.
    pub fn rename_stack(&mut self, name: String) {
        self.stack = name;
    }

    /// The whole template as JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        self.root.to_json()
    }

    /// The place in the file, such as `template.yaml:12`, of the node to which these keys and
    /// indexes lead. If a key is missing, it is the place of the closest node above it.
    #[must_use]
    pub fn place(&self, keys: &[&str]) -> String {
        let (_, node) = self.root.deepest(keys);
        format!("{}:{}", self.path.display(), node.line)
    }

    /// The number of these keys and indexes that lead to a node.
    pub(crate) fn depth(&self, keys: &[&str]) -> usize {
        self.root.deepest(keys).0
    }

    /// The statements of all policies of principals, each with the logical id of its resource. A
    /// check must see the most that a statement may allow. So conditions leave out no resource and
    /// no statement, and a value that has no name on a laptop matches any name.
    ///
    /// # Errors
    /// With the line, when there are no resources.
    pub fn statements(&self) -> Result<Vec<(String, Value)>, TemplateError> {
        let scope = Scope::new(self, &BTreeMap::new(), "http://127.0.0.1");
        scope.and_then(|scope| scope.statements()).map_err(|wrong| self.wrong(wrong))
    }

    /// The ARN of a resource on a laptop; `None` if the template cannot be read.
    pub(crate) fn arn(&self, id: &str) -> Option<String> {
        let scope = Scope::new(self, &BTreeMap::new(), "http://127.0.0.1").ok()?;
        Some(scope.physical(id, self.root.line).ok()?.arn)
    }

    pub(crate) fn wrong(&self, (line, message): (usize, String)) -> TemplateError {
        TemplateError::Wrong { path: self.path.clone(), line, message }
    }

    /// Resolves the template, as far as the local stack runs it.
    ///
    /// `overrides` are values of its parameters; `sqs_url` is the URL of the queues' service.
    ///
    /// # Errors
    /// With the line, when a part of it is wrong, or is not emulated by the local stack.
    pub fn template(
        &self,
        overrides: &BTreeMap<String, String>,
        sqs_url: &str,
    ) -> Result<Template, TemplateError> {
        let scope = Scope::new(self, overrides, sqs_url);
        scope
            .and_then(|scope| scope.with_paths().read_template())
            .map_err(|wrong| self.wrong(wrong))
    }
}

/// The parameter with the host of the PostgreSQL database for views. Without a value, the functions
/// that need it do not exist.
pub const DATABASE_HOST: &str = "DatabaseHost";
/// The parameter with the URL of the OpenSearch domain for views, likewise.
pub const SEARCH_ENDPOINT: &str = "SearchEndpoint";

/// Returns the options with which the local stack starts the stores of views that a template with
/// these parameters may lack.
pub fn store_options(parameters: &Value) -> Vec<&'static str> {
    let stores = [(DATABASE_HOST, "--postgres"), (SEARCH_ENDPOINT, "--search")].into_iter();
    let known = stores.filter(|(parameter, _)| parameters[*parameter].is_object());
    known.map(|(_, option)| option).collect()
}

/// Resolves a template with all functions that it may have, such as those that need a database.
///
/// # Errors
/// As those of [`resolve`].
pub fn resolve_all(source: &Source) -> Result<Template, TemplateError> {
    let parameters = &source.json()["Parameters"];
    let stores = [DATABASE_HOST, SEARCH_ENDPOINT].into_iter();
    let values = stores
        .filter(|name| parameters[*name].is_object())
        .map(|name| (name.to_owned(), "localhost".to_owned()));
    resolve(source, &values.collect(), "http://127.0.0.1")
}

/// Reads a template that has functions, as [`Source::read`] and [`Source::template`] do.
///
/// # Errors
/// As those of both, and when there are no functions.
pub fn load(
    path: &Path,
    overrides: &BTreeMap<String, String>,
    sqs_url: &str,
) -> Result<Template, TemplateError> {
    resolve(&Source::read(path)?, overrides, sqs_url)
}

/// Resolves a template that must have functions, as [`Source::template`] does.
pub fn resolve(
    source: &Source,
    overrides: &BTreeMap<String, String>,
    sqs_url: &str,
) -> Result<Template, TemplateError> {
    let template = source.template(overrides, sqs_url)?;
    if template.functions.is_empty() {
        let message = "there are no functions".into();
        return Err(TemplateError::Wrong {
            path: source.path.clone(),
            line: source.root.line,
            message,
        });
    }
    Ok(template)
}

/// The tables of a template. It may have no functions, such as the template of a library's tests.
/// The path is that of [`Source::parse`].
///
/// # Errors
/// As those of [`Source::parse`] and [`Source::template`].
pub fn tables_in(text: &str, path: &Path) -> Result<Vec<Table>, TemplateError> {
    Ok(Source::parse(text, path)?.template(&BTreeMap::new(), "http://127.0.0.1:1")?.tables)
}

/// Reads a template as JSON. Its functions are not resolved.
///
/// # Errors
/// As those of [`Source::read`].
pub fn tree(path: &Path) -> Result<Value, TemplateError> {
    Ok(Source::read(path)?.json())
}
