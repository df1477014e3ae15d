//! Circles of imports between the files of one package.
//!
//! A file imports another one if it names the other's module, or an item in it, by a path. A path
//! to a module around the file does not count, nor does the code of unit tests.

use std::collections::{BTreeMap, BTreeSet};

use super::{File, files};

/// The modules that may be in a circle, one for each allowed circle. The list may only get shorter.
const ALLOWED: [&str; 1] = ["ledgerline-tools/new"];

/// A module of a package: the names from the root of the package.
type Module = Vec<String>;

#[test]
fn imports_between_the_files_of_a_package_have_no_other_circles() {
    let mut packages = BTreeMap::<String, BTreeMap<Module, String>>::new();
    for File { path, text } in files(&[".rs"], &["/starter/", "/src/bin/"]) {
        let Some((package, file)) = path.split_once("/src/") else { continue };
        packages.entry(package.to_owned()).or_default().insert(module(file), code(&text));
    }
    assert!(packages.len() > 10, "{} packages are too few to be all", packages.len());
    let mut others = Vec::new();
    for (package, modules) in &packages {
        for circle in circles(modules) {
            let path = |module: &Module| {
                format!("{package}/{}", module.join("/")).replace("crates/lib/", "")
            };
            let circle: BTreeSet<_> = circle.iter().map(path).collect();
            others.extend((!ALLOWED.iter().any(|known| circle.contains(*known))).then_some(circle));
        }
    }
    assert!(others.is_empty(), "these files import each other: {others:#?}");
}

/// Returns the module of a file below `src`.
fn module(file: &str) -> Module {
    let mut names: Vec<_> =
        file.trim_end_matches(".rs").split('/').map(ToOwned::to_owned).collect();
    names.pop_if(|last| ["lib", "main", "mod"].contains(&&**last));
    names
}

/// Returns the code of a file without the lines of comments and without its unit tests.
fn code(text: &str) -> String {
    let text = text.split("\n#[cfg(test)]\n").next().unwrap_or_default();
    text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// Returns the circles: modules of which each leads to each other by imports.
fn circles(modules: &BTreeMap<Module, String>) -> BTreeSet<BTreeSet<Module>> {
    let imports: BTreeMap<_, _> =
        modules.iter().map(|(module, code)| (module, imports(module, code, modules))).collect();
    let reached = |from: &Module| {
        let mut reached = BTreeSet::new();
        let mut next = vec![from];
        while let Some(module) = next.pop() {
            next.extend(imports[module].iter().filter(|import| reached.insert((*import).clone())));
        }
        reached
    };
    let reached: BTreeMap<_, _> = modules.keys().map(|module| (module, reached(module))).collect();
    let circle = |module: &Module| {
        reached[module].iter().filter(|other| reached[other].contains(module)).cloned().collect()
    };
    modules.keys().map(circle).filter(|circle: &BTreeSet<_>| circle.len() > 1).collect()
}

/// Returns the modules that the code of a module imports.
fn imports(module: &Module, code: &str, modules: &BTreeMap<Module, String>) -> BTreeSet<Module> {
    let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let mut found = BTreeSet::new();
    for (at, _) in code.match_indices("::") {
        let start = code[..at].rfind(|c| !is_path(c)).map_or(0, |before| before + 1);
        // Only the first `::` of a path leads to its start.
        if code[start..at].contains("::") {
            continue;
        }
        let Some(base) = base(module, &code[start..at], modules) else { continue };
        for path in paths(&code[at + 2..]) {
            // `super` in a path leads one module up.
            let mut names = Module::new();
            for name in base.iter().cloned().chain(path) {
                if name == "super" { drop(names.pop()) } else { names.push(name) }
            }
            let known = (1..=names.len()).rev().find(|end| modules.contains_key(&names[..*end]));
            found.extend(known.map(|end| names[..end].to_vec()));
        }
    }
    found.retain(|import| !module.starts_with(import));
    found
}

/// Returns the module in which a path of a module with this first name begins.
fn base(module: &Module, first: &str, modules: &BTreeMap<Module, String>) -> Option<Module> {
    let child = [&module[..], &[first.to_owned()]].concat();
    match first {
        "crate" => Some(Vec::new()),
        "self" => Some(module.clone()),
        "super" => Some(module[..module.len().saturating_sub(1)].to_vec()),
        _ => modules.contains_key(&child).then_some(child),
    }
}

/// Returns the paths of a tree of imports: `a` and `b::c` of `{a, b::{c}}`.
fn paths(tree: &str) -> Vec<Module> {
    let (mut paths, mut stack, mut path) = (Vec::new(), Vec::<Module>::new(), Module::new());
    let mut name = String::new();
    for c in tree.chars() {
        match c {
            c if c.is_alphanumeric() || c == '_' || c == '*' => name.push(c),
            ':' if !name.is_empty() => path.push(std::mem::take(&mut name)),
            ':' => {}
            '{' => stack.push(path.clone()),
            ',' | '}' if !stack.is_empty() => {
                // Nothing stands between a closing brace and the next comma.
                if !name.is_empty() {
                    path.push(std::mem::take(&mut name));
                    paths.push(path);
                }
                if c == '}' {
                    stack.pop();
                }
                path = stack.last().cloned().unwrap_or_default();
            }
            c if c.is_whitespace() && !stack.is_empty() => {}
            _ => break,
        }
    }
    path.push(name);
    paths.push(path);
    paths
}

#[test]
fn a_circle_is_found_in_trees_of_imports() {
    let module = |name: &str, code: &str| (vec![name.to_owned()], code.to_owned());
    let modules = BTreeMap::from([
        module("a", "use crate::{c::{X, Y}, b};"),
        module("b", "fn f() { super::c::x() }"),
        module("c", "use crate::{\n    d::self, a::Z};"),
        module("d", "use std::c::a;"),
    ]);
    let circle = ["a", "b", "c"].map(|name| vec![name.to_owned()]);
    assert_eq!(circles(&modules), BTreeSet::from([circle.into()]));
}
