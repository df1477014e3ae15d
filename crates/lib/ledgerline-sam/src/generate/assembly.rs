//! Generates the whole template of an application from the manifests of its functions.
//!
//! In this order: parts and functions with their tables; the defaults of each type; `deploy.yaml`;
//! variables that list resources; roles. So lists and grants follow from what `deploy.yaml`
//! changes.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail};
use ledgerline::manifest::{Manifest, Manifests, Name};

use super::{
    application_name::Application,
    conditions,
    deploy::{Deploy, OptionalPart},
    function::{Function, Kind},
    headings, ids, lists, operator_policies,
    part::{self, Names},
    prune, role_policy, statements, stores, table, write,
};
use crate::{
    functions::Template,
    lookup::{binary, logical_id},
    template::Source,
    yaml::{self, Kind as NodeKind, Node},
};

/// Returns the text of the template of an application, with the file of its team merged over it.
/// Two runs return identical bytes.
///
/// # Errors
/// When a function has no known kind, or two functions have one name or declare one table
/// differently. With the line, when the file of the team is wrong.
pub fn template(
    application: &Application,
    manifests: &Manifests,
    deploy: &Deploy,
) -> Result<String> {
    let names = application.names();
    let mut functions = Vec::new();
    for (binary, manifest) in manifests.iter().filter(|(binary, _)| !deploy.has_function(binary)) {
        let function = Function::new(binary, manifest)?;
        if let Some(other) = functions.iter().find(|it: &&Function<'_>| it.name == function.name) {
            bail!("`{}` and `{binary}` both make {}: rename one", other.binary, function.id());
        }
        functions.push(function);
    }
    let has_sequencer = functions.iter().any(|function| function.kind == Kind::Sequencer);
    let reads = |function: &&Function<'_>| function.manifest.table_of("SEQUENCE_TABLE").is_some();
    if let Some(function) = functions.iter().find(reads).filter(|_| !has_sequencer) {
        bail!(
            "`{}` reads `$all`, and no function is the sequencer that writes it",
            function.binary
        );
    }
    check_bodies(manifests)?;
    let mut template = skeleton(application, &names, &functions)?;
    part::fill_types(&mut template)?;
    let mut template = deploy.merge(ids::keep(template, deploy)?)?;
    template = with_roles(with_lists(template, manifests)?, manifests, deploy)?;
    template = with_operators(template, manifests, deploy)?;
    for (condition, implied_by) in stores::conditions() {
        conditions::guard(&mut template, condition, &implied_by)?;
    }
    prune::drop_unused(&mut template, deploy.file());
    group_parameters(&mut template);
    Ok(write::write(&with_manifests(template, manifests)?))
}

/// Checks that each function that reads a category with body objects has the right to read them.
fn check_bodies(manifests: &Manifests) -> Result<()> {
    let declared = manifests.values().filter_map(|manifest| manifest.bodies.as_ref());
    let categories = declared.flat_map(|grants| grants.reads.iter().cloned()).collect();
    for (binary, manifest) in manifests {
        if manifest.body_grants(&categories) != manifest.bodies {
            let categories: Vec<_> = categories.iter().map(|category| &**category).collect();
            bail!(
                "`{binary}` reads commits of a category with body objects, and its package does not \
                 declare it: write `bodies` with {} into `handlers!` of each package",
                categories.join(", ")
            );
        }
    }
    Ok(())
}

/// The template without the lists and statements that name resources of several functions.
fn skeleton(application: &Application, names: &Names, functions: &[Function<'_>]) -> Result<Node> {
    let mut template = part::APP.read(names)?;
    let tables = conditional_tables(functions)?;
    let single = |kind| functions.iter().filter(move |function| function.kind == kind);
    let routes = functions.iter().flat_map(|function| function.manifest.endpoints());
    let scopes: BTreeSet<_> = routes.map(|endpoint| endpoint.scope.as_str()).collect();
    let has_operators = single(Kind::Reconciler).next().is_some();
    let has_bodies = functions.iter().any(|function| function.manifest.bodies.is_some());
    for (part, is_needed) in [
        (part::ACCESS, true),
        (part::EVENTS_READER, scopes.contains("events")),
        (part::OPERATOR_CLIENT, has_operators || scopes.contains("operate")),
        (part::WEB, application.parts.contains(&OptionalPart::WebApp)),
        (part::LOG, true),
        (part::BODIES, has_bodies),
        (part::KINESIS, functions.iter().any(|function| function.manifest.kinesis)),
    ] {
        if is_needed {
            part::add(&mut template, part.read(names)?)?;
        }
    }
    for part in stores::parts(&manifests(functions)) {
        part::add(&mut template, part.read(names)?)?;
    }
    let mut sign_ups = single(Kind::SignUp);
    if let Some(function) = sign_ups.next() {
        let mut names = names.clone();
        names.insert("Function", function.name.clone());
        part::add(&mut template, part::SIGN_UP_POOL.read(&names)?)?;
    }
    if let Some(other) = sign_ups.next() {
        bail!("`{}` is a second function for sign-ups, and a user pool invokes one", other.binary);
    }
    for kind in [Kind::Fanout, Kind::Sequencer, Kind::EventsQueries] {
        single(kind).try_for_each(|it| add_function(&mut template, it, &tables, names))?;
    }
    if has_operators {
        part::add(&mut template, part::OPERATORS.read(names)?)?;
    }
    if has_operators && has_bodies {
        part::add(&mut template, part::ARCHIVE.read(names)?)?;
    }
    single(Kind::Reconciler).try_for_each(|it| add_function(&mut template, it, &tables, names))?;
    let dashboard = application.parts.contains(&OptionalPart::Dashboard).then_some(part::DASHBOARD);
    for part in [part::MONITORING].into_iter().chain(dashboard) {
        part::add(&mut template, part.read(names)?)?;
    }
    for (heading, members) in headings::groups(functions, &application.folders) {
        let mut fragment = Node::map([("Resources", Node::map::<&str>([]))]);
        for function in members {
            add_function(&mut fragment, function, &tables, names)?;
        }
        part::add(&mut template, headings::with_heading(fragment, &heading))?;
    }
    prune::drop_scopes(&mut template, &scopes);
    Ok(template)
}

fn manifests<'a>(functions: &[Function<'a>]) -> Vec<&'a Manifest> {
    functions.iter().map(|function| function.manifest).collect()
}

/// The tables of each function. A table with generations of views in optional stores has a
/// condition, because all functions that declare such a table have one.
fn conditional_tables<'a>(functions: &[Function<'a>]) -> Result<BTreeMap<&'a str, Node>> {
    let condition = stores::condition(&stores::needed(&manifests(functions)));
    let mut all = BTreeMap::new();
    for (binary, tables) in table::tables(functions)? {
        let mut fragment = Node::map([("Resources", Node::map(tables))]);
        let mut owner = functions.iter().filter(|function| function.binary == binary);
        if owner.any(|function| function.optional_store().is_some()) {
            conditions::add(&mut fragment, condition);
        }
        all.insert(binary, fragment);
    }
    Ok(all)
}

/// Adds a function, and above it its tables.
fn add_function(
    template: &mut Node,
    function: &Function<'_>,
    tables: &BTreeMap<&str, Node>,
    names: &Names,
) -> Result<()> {
    if let Some(tables) = tables.get(function.binary) {
        part::add(template, tables.clone())?;
    }
    for node in function.resources(names)? {
        part::add(template, node)?;
    }
    let values = part::VARIABLES.read(names)?;
    let globals = part::APP.read(names)?;
    let globals = globals.descend(&["Globals", "Function", "Environment", "Variables"]);
    let id = function.id();
    let own = ["Resources", &id, "Properties", "Environment", "Variables"];
    let own = template.descend(&own);
    let known =
        |name: &str| [&globals, &own].iter().any(|it| it.is_some_and(|it| it.get(name).is_some()));
    let variables = function.variables(&values);
    let variables = variables.entries().iter().filter(|(name, _)| !known(name)).cloned();
    let variables = Node::map(variables.collect::<Vec<_>>());
    set(template, &function.id(), variables_of(variables));
    Ok(())
}

fn variables_of(variables: Node) -> Node {
    match variables.entries() {
        [] => Node::map::<&str>([]),
        _ => Node::map([("Environment", Node::map([("Variables", variables)]))]),
    }
}

/// Merges properties into those of a resource.
fn set(template: &mut Node, id: &str, properties: Node) {
    let resource = Node::map([("Properties", properties)]);
    let base = std::mem::replace(template, Node::list([]));
    *template = yaml::merge(base, Node::map([("Resources", Node::map([(id, resource)]))]));
}

/// Leaves parameters that the template lacks out of the groups of the console, and adds a last
/// group for those that no group names.
fn group_parameters(template: &mut Node) {
    let parameters = template.get("Parameters").map_or(&[][..], Node::entries);
    let mut left: Vec<_> = parameters.iter().map(|(name, _)| name.clone()).collect();
    let path = ["AWS::CloudFormation::Interface", "ParameterGroups"];
    let Some(groups) = template.get_mut("Metadata").and_then(|it| it.get_mut(path[0])) else {
        return;
    };
    let Some(NodeKind::List(groups)) = groups.get_mut(path[1]).map(|node| &mut node.kind) else {
        return;
    };
    for group in groups.iter_mut() {
        if let Some(NodeKind::List(names)) = group.get_mut("Parameters").map(|node| &mut node.kind)
        {
            names.retain(|name| left.iter().any(|it| name.as_str() == Some(it)));
            left.retain(|it| !names.iter().any(|name| name.as_str() == Some(it)));
        }
    }
    if !left.is_empty() {
        let names = Node::list(left.into_iter().map(Node::from));
        let label = Node::map([("default", Node::from("Own"))]);
        groups.push(Node::map([("Label", label), ("Parameters", names)]));
    }
}

/// Fills the variables that list functions, queues and events.
fn with_lists(mut template: Node, manifests: &Manifests) -> Result<Node> {
    let source = source(&template)?;
    let json = source.json();
    let parsed = Template::new(&json, manifests);
    for function in &parsed.functions {
        let manifest = function.manifest;
        let is_unset = |name: &&Name| {
            parsed.variable(function, name).is_none() && !lists::VARIABLES.contains(&&***name)
        };
        if let Some(name) = manifest.variables.iter().find(is_unset) {
            let id = function.id;
            bail!(
                "{id} reads {name}, which has no value: write into deploy.yaml, under Resources: \
                 {id}: {{ Properties: {{ Environment: {{ Variables: {{ {name}: … }} }} }} }}"
            );
        }
        let is_read = |name: &&&str| {
            manifest.variables.contains(**name) || manifest.optional_variables.contains(**name)
        };
        for name in lists::VARIABLES.iter().filter(is_read) {
            let mut value = lists::value(&parsed, name);
            let path = ["Resources", function.id, "Properties", "Environment", "Variables", *name];
            let known = template.descend(&path);
            value.comment = known.map_or(Vec::new(), |known| known.comment.clone());
            set(&mut template, function.id, variables_of(Node::map([(*name, value)])));
        }
    }
    Ok(template)
}

/// Adds to each generated role the policy that the manifest, variables and events of its function
/// require.
fn with_roles(mut template: Node, manifests: &Manifests, deploy: &Deploy) -> Result<Node> {
    let source = source(&template)?;
    let json = source.json();
    let parsed = Template::new(&json, manifests);
    for function in &parsed.functions {
        let role = logical_id(&function.properties["Role"]).unwrap_or_default();
        let policy_name = binary(&json["Resources"][function.id]);
        let grants = statements::grants(&parsed, function);
        if !grants.is_empty() && !deploy.has_own(role) {
            let policies = role_policy::policies(policy_name, &grants);
            set(&mut template, role, Node::map([("Policies", policies)]));
        }
    }
    Ok(template)
}

/// Adds the resources of the template to the policies of operators.
fn with_operators(mut template: Node, manifests: &Manifests, deploy: &Deploy) -> Result<Node> {
    let json = source(&template)?.json();
    let parsed = Template::new(&json, manifests);
    if let Some(resources) = template.get_mut("Resources") {
        operator_policies::list_resources(resources, &parsed, |id| deploy.has_own(id));
    }
    Ok(template)
}

/// The first line.
const SOURCES: &str =
    "`cargo xtask wire` makes this file from the functions and deploy.yaml: change those.";

fn with_manifests(template: Node, manifests: &Manifests) -> Result<Node> {
    let mut texts = Vec::new();
    for (name, manifest) in manifests {
        texts.push((name.clone(), Node::from(serde_json::to_string(manifest)?)));
    }
    let manifests = Node::map([("Manifests", Node::map(texts))]);
    // The first transform puts in the values of parameters. So SAM makes a new version of a function
    // if a parameter changes that its variables name, and the alias moves on.
    let transform = ["AWS::LanguageExtensions", "AWS::Serverless-2016-10-31"];
    let transform = Node::list(transform.map(Node::from));
    let head = Node::map([
        ("AWSTemplateFormatVersion", Node::from("2010-09-09")),
        ("Transform", transform),
    ]);
    let metadata = Node::map([("Metadata", Node::map([("Ledgerline", manifests)]))]);
    let whole = yaml::merge(yaml::merge(head, template), metadata);
    Ok(whole.with_comment(Some(vec![SOURCES.to_owned()])))
}

/// The template as its readers see it.
fn source(template: &Node) -> Result<Source> {
    let path = std::path::Path::new("template.yaml");
    Source::parse(&write::write(template), path).context("the generated template")
}
