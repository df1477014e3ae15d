//! The parser of patterns. Its errors are the reasons for which EventBridge refuses a pattern.

use std::net::IpAddr;

use serde_json::{Map, Value};

use super::{
    Field, Pattern,
    condition::{Bound, Cidr, Condition, Glyph, Operator, Test},
    join,
};

type ParseResult<T> = Result<T, String>;

/// The largest number of alternatives that `$or` may make. Source: the user guide, "Or matching".
const MAX_ALTERNATIVES: usize = 1_000;
/// The largest number of wildcards before the same character. AWS publishes no formula for a
/// wildcard that is too complex: it refused five in a recorded case.
const MAX_REPEATED_WILDCARDS: usize = 4;

pub(super) fn parse(pattern: &str) -> ParseResult<Pattern> {
    let pattern: Value = serde_json::from_str(pattern).map_err(|error| error.to_string())?;
    let fields = pattern.as_object().ok_or("the pattern is no JSON object")?;
    let mut alternatives = vec![Vec::new()];
    parse_object("", fields, &mut alternatives)?;
    Ok(Pattern { alternatives })
}

fn parse_object(
    path: &str,
    fields: &Map<String, Value>,
    alternatives: &mut Vec<Vec<Field>>,
) -> ParseResult<()> {
    if fields.is_empty() {
        return Err(format!("an object at `{path}` is empty"));
    }
    for (name, value) in fields {
        if name == "$or"
            && let Some(branches) = or_branches(value)
        {
            let base = std::mem::take(alternatives);
            for branch in branches {
                let mut extended = base.clone();
                parse_object(path, branch, &mut extended)?;
                alternatives.extend(extended);
            }
            if alternatives.len() > MAX_ALTERNATIVES {
                return Err(format!("`$or` makes more than {MAX_ALTERNATIVES} alternatives"));
            }
            continue;
        }
        let path = join(path, name);
        if let Some(fields) = value.as_object() {
            parse_object(&path, fields, alternatives)?;
            continue;
        }
        let conditions = value.as_array().filter(|conditions| !conditions.is_empty());
        let conditions = conditions
            .ok_or_else(|| format!("`{path}` is neither an object nor an array with a value"))?;
        let conditions = conditions.iter().map(parse_condition).collect::<ParseResult<Vec<_>>>()?;
        for fields in &mut *alternatives {
            fields.push(Field { path: path.clone(), conditions: conditions.clone() });
        }
    }
    Ok(())
}

/// The branches of `$or`; `None` if it is a field of that name.
fn or_branches(value: &Value) -> Option<Vec<&Map<String, Value>>> {
    let branches: Option<Vec<_>> = value.as_array()?.iter().map(Value::as_object).collect();
    let is_branch = |branch: &&Map<String, Value>| {
        !branch.is_empty() && branch.values().all(|value| value.is_array() || value.is_object())
    };
    branches.filter(|branches| branches.len() > 1 && branches.iter().all(is_branch))
}

fn parse_condition(condition: &Value) -> ParseResult<Condition> {
    if condition.is_array() {
        return Err("an array is in an array".into());
    }
    let Some(operator) = condition.as_object() else {
        return Ok(Condition::Is(Test::Equal(condition.clone())));
    };
    let [(name, operand)] = operator.iter().collect::<Vec<_>>()[..] else {
        return Err("a condition has exactly one operator".into());
    };
    match name.as_str() {
        "exists" => Ok(Condition::Exists(operand.as_bool().ok_or("`exists` is no boolean")?)),
        "anything-but" => Ok(Condition::AnythingBut(parse_anything_but(operand)?)),
        _ => Ok(Condition::Is(parse_test(name, operand)?)),
    }
}

fn parse_test(operator: &str, operand: &Value) -> ParseResult<Test> {
    let text = || operand.as_str().ok_or(format!("`{operator}` is no text"));
    let ignoring_case = operand.as_object().filter(|operand| operand.len() == 1);
    let ignoring_case = ignoring_case.and_then(|operand| operand.get("equals-ignore-case"));
    let ignoring_case = ignoring_case.and_then(Value::as_str).map(str::to_lowercase);
    Ok(match (operator, ignoring_case) {
        ("prefix", Some(prefix)) => Test::PrefixIgnoringCase(prefix),
        ("suffix", Some(suffix)) => Test::SuffixIgnoringCase(suffix),
        ("prefix", None) => Test::Prefix(text()?.to_owned()),
        ("suffix", None) => Test::Suffix(text()?.to_owned()),
        ("equals-ignore-case", _) => Test::EqualIgnoringCase(text()?.to_lowercase()),
        ("wildcard", _) => Test::Wildcard(parse_wildcard(text()?)?),
        ("numeric", _) => Test::Numeric(parse_numeric(operand)?),
        ("cidr", _) => Test::Cidr(parse_cidr(text()?)?),
        _ => return Err(format!("there is no operator `{operator}`")),
    })
}

fn parse_anything_but(operand: &Value) -> ParseResult<Vec<Test>> {
    let list =
        |operand: &Value| operand.as_array().cloned().unwrap_or_else(|| vec![operand.clone()]);
    if let Some(operator) = operand.as_object() {
        let [(name, operand)] = operator.iter().collect::<Vec<_>>()[..] else {
            return Err("`anything-but` has exactly one operator".into());
        };
        let texts = list(operand);
        let is_allowed = |text: &Value| match name.as_str() {
            "prefix" | "suffix" => text.as_str().is_some_and(|text| !text.is_empty()),
            "equals-ignore-case" | "wildcard" => text.is_string(),
            _ => false,
        };
        if texts.is_empty() || !texts.iter().all(is_allowed) {
            return Err(format!("`anything-but` does not accept {operand} for `{name}`"));
        }
        return texts.iter().map(|text| parse_test(name, text)).collect();
    }
    let values = list(operand);
    let is_one_kind = values.iter().all(Value::is_string) || values.iter().all(Value::is_number);
    if values.is_empty() || !is_one_kind {
        return Err("`anything-but` accepts texts or numbers, and not both".into());
    }
    Ok(values.into_iter().map(Test::Equal).collect())
}

fn parse_wildcard(text: &str) -> ParseResult<Vec<Glyph>> {
    let mut glyphs = Vec::new();
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        glyphs.push(match character {
            '*' if glyphs.last() == Some(&Glyph::Any) => {
                return Err("two wildcards follow each other".into());
            }
            '*' => Glyph::Any,
            '\\' => match characters.next() {
                Some(escaped @ ('*' | '\\')) => Glyph::One(escaped),
                Some(_) | None => return Err("a backslash is before neither `*` nor `\\`".into()),
            },
            character => Glyph::One(character),
        });
    }
    let after_any: Vec<_> =
        glyphs.windows(2).filter(|pair| pair[0] == Glyph::Any).map(|pair| pair[1]).collect();
    let repeats = |glyph: &Glyph| after_any.iter().filter(|other| *other == glyph).count();
    if after_any.iter().any(|glyph| repeats(glyph) > MAX_REPEATED_WILDCARDS) {
        return Err("the wildcards are too complex".into());
    }
    Ok(glyphs)
}

fn parse_numeric(operand: &Value) -> ParseResult<Vec<Bound>> {
    const FORM: &str =
        "`numeric` accepts [\"=\", number], or one or two bounds, the lower one first";
    let parts = operand.as_array().ok_or(FORM)?;
    let bounds = parts.chunks(2).map(|pair| {
        let operator = match pair[0].as_str()? {
            "=" => Operator::Equal,
            ">" => Operator::Above,
            ">=" => Operator::AtLeast,
            "<" => Operator::Below,
            "<=" => Operator::AtMost,
            _ => return None,
        };
        Some(Bound { operator, number: pair.get(1)?.as_f64()? })
    });
    let bounds = bounds.collect::<Option<Vec<_>>>().ok_or(FORM)?;
    let is_lower = |bound: &Bound| matches!(bound.operator, Operator::Above | Operator::AtLeast);
    let is_upper = |bound: &Bound| matches!(bound.operator, Operator::Below | Operator::AtMost);
    match &bounds[..] {
        [_] => Ok(bounds),
        [low, high] if is_lower(low) && is_upper(high) && low.number < high.number => Ok(bounds),
        _ => Err(FORM.into()),
    }
}

fn parse_cidr(text: &str) -> ParseResult<Cidr> {
    let parsed = || {
        let (address, bits) = text.split_once('/')?;
        let (address, bits): (IpAddr, u32) = (address.parse().ok()?, bits.parse().ok()?);
        let most = if address.is_ipv4() { 32 } else { 128 };
        (bits <= most).then_some(Cidr { address, bits })
    };
    parsed().ok_or_else(|| format!("`{text}` is no range of addresses"))
}
