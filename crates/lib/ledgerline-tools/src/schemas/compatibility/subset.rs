//! The comparison of two schemas: finds values that one schema allows and the other refuses.
//!
//! The comparison is of the structure, and errs on the safe side: two different spellings of one
//! rule are a difference.

use std::{cell::RefCell, collections::BTreeSet};

use serde_json::Value;

use super::meaning;
use crate::schemas::misfit;

/// The program that reads the values: the new one, or a client of the old contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    /// The new program reads what the old contract allows: a request, or a stored row.
    Read,
    /// Clients of the old contract read what the new program writes.
    Written,
}

/// The documents of two schemas, in which their references are resolved.
#[derive(Debug)]
pub(super) struct Comparison<'a> {
    old: &'a Value,
    new: &'a Value,
    direction: Direction,
    /// The pairs of references around the place that is compared. A type that contains itself would
    /// have no end without them.
    open: RefCell<BTreeSet<(String, String)>>,
}

/// A bound of a schema: its name, and whether a larger number allows more values.
const BOUNDS: [(&str, bool); 8] = [
    ("minimum", false),
    ("maximum", true),
    ("minLength", false),
    ("maxLength", true),
    ("minItems", false),
    ("maxItems", true),
    ("minProperties", false),
    ("maxProperties", true),
];

/// The keywords that this comparison knows. Any other keyword must be the same on both sides.
const KNOWN: [&str; 10] = [
    "$ref",
    "additionalProperties",
    "allOf",
    "anyOf",
    "const",
    "enum",
    "items",
    "oneOf",
    "properties",
    "required",
];

/// Returns the schema to which a schema refers, or the schema itself.
pub(super) fn resolve<'v>(document: &'v Value, schema: &'v Value) -> &'v Value {
    let pointer = schema["$ref"].as_str().and_then(|reference| reference.strip_prefix('#'));
    pointer.and_then(|pointer| document.pointer(pointer)).unwrap_or(schema)
}

impl<'a> Comparison<'a> {
    pub(super) fn new(old: &'a Value, new: &'a Value, direction: Direction) -> Self {
        Self { old, new, direction, open: RefCell::default() }
    }

    /// Returns the reasons why a written value may not be readable, each with the place in the
    /// value.
    pub(super) fn differences(&self, old: &Value, new: &Value) -> Vec<String> {
        let mut found = Vec::new();
        self.compare("", old, new, &mut found);
        found
    }

    fn compare(&self, place: &str, old: &Value, new: &Value, found: &mut Vec<String>) {
        let names = old["$ref"].as_str().zip(new["$ref"].as_str());
        let pair = names.map(|(old, new)| (old.to_owned(), new.to_owned()));
        if pair.as_ref().is_some_and(|pair| !self.open.borrow_mut().insert(pair.clone())) {
            return;
        }
        self.compare_keywords(place, resolve(self.old, old), resolve(self.new, new), found);
        if let Some(pair) = pair {
            self.open.borrow_mut().remove(&pair);
        }
    }

    fn compare_keywords(&self, place: &str, old: &Value, new: &Value, found: &mut Vec<String>) {
        let (sub, sup) = self.sub_and_super(old, new);
        if is_everything(sup) || meaning(old) == meaning(new) && !has_reference(old) {
            return;
        }
        let (olds, news) = (branches(old, "allOf"), branches(new, "allOf"));
        if olds.len() == news.len() {
            olds.iter().zip(&news).for_each(|(old, new)| self.compare(place, old, new, found));
        } else {
            found.push(sentence(place, "`allOf` differs"));
        }
        self.alternatives(place, old, new, found);
        self.values(place, old, new, found);
        self.bounds(place, old, new, found);
        self.fields(place, old, new, found);
        self.others(place, old, new, found);
        if let Some(items) = sup.get("items") {
            let none = Value::Bool(true);
            let of_sub = sub.get("items").unwrap_or(&none);
            let (old, new) = self.sub_and_super(of_sub, items);
            self.compare(&format!("{place}[]"), old, new, found);
        }
    }

    /// Compares the keywords that no other function of this module compares.
    fn others(&self, place: &str, old: &Value, new: &Value, found: &mut Vec<String>) {
        let (old, new) = (meaning(old), meaning(new));
        let names =
            [&old, &new].map(|schema| schema.as_object().into_iter().flat_map(|of| of.keys()));
        let names: BTreeSet<&String> = names.into_iter().flatten().collect();
        let is_known = |name: &str| {
            let of_values = ["type", "pattern", "format"].contains(&name);
            of_values || KNOWN.contains(&name) || BOUNDS.iter().any(|(bound, _)| *bound == name)
        };
        let others = names.into_iter().filter(|name| !is_known(name) && old[*name] != new[*name]);
        found.extend(others.map(|name| sentence(place, &format!("`{name}` differs"))));
    }

    /// Returns the schema of the written values and that of the read ones. A second call restores
    /// the order of the two schemas.
    fn sub_and_super<'v>(&self, old: &'v Value, new: &'v Value) -> (&'v Value, &'v Value) {
        match self.direction {
            Direction::Read => (old, new),
            Direction::Written => (new, old),
        }
    }

    /// Compares the alternatives of two schemas, if one of them has any.
    fn alternatives(&self, place: &str, old: &Value, new: &Value, found: &mut Vec<String>) {
        let has = |schema: &Value| schema.get("anyOf").or(schema.get("oneOf")).is_some();
        if !has(old) && !has(new) {
            return;
        }
        let (olds, news) = (alternatives(old), alternatives(new));
        let (subs, sups) = match self.direction {
            Direction::Read => (&olds, &news),
            Direction::Written => (&news, &olds),
        };
        for sub in subs {
            let tried = sups.iter().map(|sup| {
                let (old, new) = self.sub_and_super(sub, sup);
                let mut found = Vec::new();
                self.compare(place, old, new, &mut found);
                found
            });
            // The nearest alternative has the fewest differences.
            if let Some(nearest) = tried.min_by_key(Vec::len) {
                found.extend(nearest);
            }
        }
    }

    /// Compares the types and the listed values.
    fn values(&self, place: &str, old: &Value, new: &Value, found: &mut Vec<String>) {
        let (sub, sup) = self.sub_and_super(old, new);
        let what = |value: &str| match self.direction {
            Direction::Read => sentence(place, &format!("{value} is no longer allowed")),
            Direction::Written => sentence(place, &format!("{value} is new")),
        };
        // Alternatives have their own values.
        if !branches(sup, "anyOf").is_empty() || !branches(sup, "oneOf").is_empty() {
            return;
        }
        if let Some(allowed) = listed_values(sup) {
            match listed_values(sub) {
                Some(values) => {
                    let others = values.iter().filter(|value| !allowed.contains(value));
                    found.extend(others.map(|value| what(&value.to_string())));
                }
                None => found.push(what("any other value")),
            }
            return;
        }
        if let Some(values) = listed_values(sub) {
            let refused = values.iter().filter(|value| misfit(sup, value).is_some());
            found.extend(refused.map(|value| what(&value.to_string())));
            return;
        }
        let allowed = types(sup);
        if allowed.is_empty() {
            return;
        }
        let values = types(sub);
        if values.is_empty() {
            found.push(what("any other type"));
        }
        let is_allowed =
            |kind: &str| allowed.contains(kind) || kind == "integer" && allowed.contains("number");
        found.extend(values.iter().filter(|kind| !is_allowed(kind)).map(|kind| what(kind)));
    }

    /// Compares the bounds, and the patterns and formats of texts.
    fn bounds(&self, place: &str, old: &Value, new: &Value, found: &mut Vec<String>) {
        let (sub, sup) = self.sub_and_super(old, new);
        for (bound, larger_allows_more) in BOUNDS {
            let Some(limit) = sup[bound].as_f64() else { continue };
            let is_inside = sub[bound]
                .as_f64()
                .is_some_and(|own| if larger_allows_more { own <= limit } else { own >= limit });
            if !is_inside && listed_values(sub).is_none() {
                let (is, was) = (bound_text(&new[bound]), bound_text(&old[bound]));
                found.push(sentence(place, &format!("`{bound}` is {is}, and was {was}")));
            }
        }
        let is_number = types(sup).contains("integer") || types(sup).contains("number");
        for word in ["pattern", "format"] {
            let (of_sub, of_sup) = (&sub[word], &sup[word]);
            let is_inside = of_sub == of_sup || is_number && is_in_range(of_sub, of_sup);
            if of_sup.is_string() && !is_inside && listed_values(sub).is_none() {
                found.push(sentence(place, &format!("`{word}` differs")));
            }
        }
    }

    /// Compares the fields of objects.
    fn fields(&self, place: &str, old: &Value, new: &Value, found: &mut Vec<String>) {
        let (sub, sup) = self.sub_and_super(old, new);
        let inner = |field: &str| {
            if place.is_empty() { field.to_owned() } else { format!("{place}.{field}") }
        };
        // Clients may read every field of an answer, also an optional one.
        let of_new = new["properties"].as_object();
        let is_gone = |field: &str| {
            self.direction == Direction::Written
                && of_new.is_none_or(|fields| !fields.contains_key(field))
        };
        let of_old = old["properties"].as_object().into_iter().flat_map(|fields| fields.keys());
        let gone = of_old.filter(|field| is_gone(field));
        found.extend(gone.map(|field| format!("{} is removed", inner(field))));
        let always: BTreeSet<_> = required_fields(sub).collect();
        for field in required_fields(sup).filter(|field| !always.contains(field) && !is_gone(field))
        {
            let what = match self.direction {
                Direction::Read => "is required, and was not",
                Direction::Written => "is optional, and was required",
            };
            found.push(format!("{} {what}", inner(field)));
        }
        let none = Value::Bool(true);
        let is_closed = sup["additionalProperties"] == false;
        for (field, of_sub) in sub["properties"].as_object().into_iter().flatten() {
            match sup["properties"].get(field) {
                Some(of_sup) => {
                    let (old, new) = self.sub_and_super(of_sub, of_sup);
                    self.compare(&inner(field), old, new, found);
                }
                None if is_closed => found.push(format!("{} is no longer accepted", inner(field))),
                None => {}
            }
        }
        if is_closed && types(sub).contains("object") && sub["additionalProperties"] != false {
            found.push(sentence(place, "other fields are no longer accepted"));
        }
        if let Some(of_sup) =
            sup["additionalProperties"].is_object().then(|| &sup["additionalProperties"])
        {
            let of_sub = sub.get("additionalProperties").unwrap_or(&none);
            let (old, new) = self.sub_and_super(of_sub, of_sup);
            self.compare(&inner("*"), old, new, found);
        }
    }
}

/// Whether the format of a number, as schemars writes that of a Rust type, allows only numbers that
/// another format allows.
fn is_in_range(sub: &Value, sup: &Value) -> bool {
    let range = |format: &Value| {
        let format = format.as_str()?;
        let (is_signed, bits) = match format.strip_prefix("uint") {
            Some(bits) => (false, bits),
            None => (true, format.strip_prefix("int")?),
        };
        let bits = bits.parse::<u32>().ok()?;
        Some(if is_signed { (bits - 1, bits - 1) } else { (0, bits) })
    };
    match (range(sub), range(sup)) {
        (Some((low, high)), Some((lowest, highest))) => low <= lowest && high <= highest,
        _ => false,
    }
}

fn sentence(place: &str, what: &str) -> String {
    if place.is_empty() { what.to_owned() } else { format!("{place}: {what}") }
}

fn bound_text(bound: &Value) -> String {
    if bound.is_null() { "none".to_owned() } else { bound.to_string() }
}

/// Whether the schema allows every value.
fn is_everything(schema: &Value) -> bool {
    *schema == Value::Bool(true)
        || meaning(schema).as_object().is_some_and(serde_json::Map::is_empty)
}

/// Whether a schema refers to another one, which may differ behind the same reference.
fn has_reference(schema: &Value) -> bool {
    schema.to_string().contains("\"$ref\"")
}

fn branches<'v>(schema: &'v Value, word: &str) -> Vec<&'v Value> {
    schema[word].as_array().into_iter().flatten().collect()
}

/// Returns the alternatives of a schema, or the schema itself.
fn alternatives(schema: &Value) -> Vec<&Value> {
    let any = [branches(schema, "anyOf"), branches(schema, "oneOf")].concat();
    if any.is_empty() { vec![schema] } else { any }
}

fn types(schema: &Value) -> BTreeSet<&str> {
    match &schema["type"] {
        Value::String(one) => BTreeSet::from([one.as_str()]),
        Value::Array(several) => several.iter().filter_map(Value::as_str).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => BTreeSet::new(),
    }
}

/// Returns the values of a schema that lists them.
fn listed_values(schema: &Value) -> Option<Vec<&Value>> {
    match (schema.get("const"), schema.get("enum")) {
        (Some(one), _) => Some(vec![one]),
        (None, Some(Value::Array(several))) => Some(several.iter().collect()),
        (None, _) => None,
    }
}

fn required_fields(schema: &Value) -> impl Iterator<Item = &str> {
    schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str)
}
