//! The names of a new part, which replace the names of the starter.

use anyhow::{Result, bail};

/// Words that cannot be the name of a module.
const KEYWORDS: [&str; 51] = [
    "abstract", "as", "async", "await", "become", "box", "break", "const", "continue", "crate",
    "do", "dyn", "else", "enum", "extern", "false", "final", "fn", "for", "gen", "if", "impl",
    "in", "let", "loop", "macro", "match", "mod", "move", "mut", "override", "priv", "pub", "ref",
    "return", "self", "static", "struct", "super", "trait", "true", "try", "type", "typeof",
    "unsafe", "unsized", "use", "virtual", "where", "while", "yield",
];

/// Types that the modules of a new part define or name. A type with the same name would clash with
/// them.
const TYPES: [&str; 56] = [
    "Aggregate",
    "Application",
    "ApplyError",
    "Cache",
    "Changes",
    "ChangesError",
    "Command",
    "Commit",
    "Context",
    "Create",
    "Created",
    "Deserialize",
    "Due",
    "Err",
    "Event",
    "EventStore",
    "EventType",
    "EventTypes",
    "History",
    "Id",
    "Invalid",
    "JsonSchema",
    "Last",
    "Lib",
    "LogTable",
    "LogView",
    "Main",
    "Meta",
    "NonZeroUsize",
    "None",
    "Ok",
    "Option",
    "OrderedView",
    "Query",
    "Reaction",
    "RecordedEvent",
    "Refusal",
    "Rename",
    "Result",
    "Rng",
    "Route",
    "Row",
    "Serialize",
    "Some",
    "State",
    "StateTable",
    "StateView",
    "StreamId",
    "String",
    "Text",
    "Timestamp",
    "Value",
    "Vec",
    "Views",
    "VisibleTo",
    "Write",
];

/// Names that no part may have. Some are packages of a workspace, or packages that an application
/// depends on. With others, resources of `$all` or of operators would exist twice. `cursor` and
/// `unreadable` are fields of a page, beside the list with the name of the view.
const PACKAGES: [&str; 30] = [
    "alloc",
    "anyhow",
    "applications",
    "core",
    "cursor",
    "events",
    "fanout",
    "fastrand",
    "http",
    "jiff",
    "ledger",
    "ledgerline",
    "local",
    "operations",
    "proptest",
    "reconciler",
    "reqwest",
    "schemars",
    "sequence",
    "sequencer",
    "serde",
    "serde-json",
    "std",
    "test",
    "thiserror",
    "tokio",
    "tracing",
    "unreadable",
    "uuid",
    "xtask",
];

/// Fails if a part cannot have this name.
pub(super) fn check(name: &str) -> Result<()> {
    let lower = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_lowercase())
            && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
    };
    if !name.split('-').all(lower) {
        bail!(
            "{name:?} is not a name: write words of lower-case letters and digits that begin with a letter, with dashes in between, such as open-orders"
        );
    }
    let is_taken = KEYWORDS.contains(&name)
        || TYPES.contains(&upper_camel(name).as_str())
        || PACKAGES.contains(&name)
        || name.starts_with("ledgerline-");
    if is_taken {
        bail!("{name} is a word of Rust's or of the created code: choose another");
    }
    Ok(())
}

/// The words of the starter, and their replacements. A name of the starter has two words, so that
/// each form of it differs from the others: `stock-item`, `stock_item`, `StockItem`, `STOCK_ITEM`,
/// `stock item`, `stockItem`.
#[derive(Debug, Clone, Default)]
pub(super) struct Names(Vec<(String, String)>);

/// Returns the forms of a name that need no English grammar.
fn forms(name: &str) -> [String; 7] {
    let words = name.replace('-', " ");
    let snake = snake(name);
    let (first, rest) = name.split_once('-').unwrap_or((name, ""));
    let lower_camel = format!("{first}{}", upper_camel(rest));
    let (constant, title) = (snake.to_uppercase(), capital(&words));
    [name.to_owned(), constant, snake, upper_camel(name), title, words, lower_camel]
}

impl Names {
    /// Replaces one text by another.
    pub(super) fn text(mut self, from: &str, to: &str) -> Self {
        self.0.push((from.to_owned(), to.to_owned()));
        // The longest text comes first, so that `stock items` is not taken for `stock item` and an
        // `s`.
        self.0.sort_by_key(|(from, _)| std::cmp::Reverse(from.len()));
        self
    }

    /// Replaces a name by another, in all forms.
    pub(super) fn name(self, from: &str, to: &str) -> Self {
        let pairs = forms(from).into_iter().zip(forms(to));
        pairs.fold(self, |names, (from, to)| names.text(&from, &to))
    }

    /// Replaces an aggregate by another: the name of its module, the name of its type, and the
    /// category of its streams.
    pub(super) fn aggregate(self, from: &str, name: &str, of_type: &str, category: &str) -> Self {
        let from_words = from.replace('-', " ");
        let words = name.replace('-', " ");
        let from_category = from.replace('-', "");
        // The first replacement of a text wins: the type may have another name than its module.
        self.text(&upper_camel(from), of_type)
            .name(from, name)
            .text(&plural(from), &plural(name))
            .text(&plural(&from_words), &plural(&words))
            .text(&capital(&plural(&from_words)), &capital(&plural(&words)))
            .text(&with_article(&from_words), &with_article(&words))
            .text(&capital(&with_article(&from_words)), &capital(&with_article(&words)))
            .text(&snake(&with_article(&from_words)), &snake(&with_article(&words)))
            .text(&from_category, category)
            .text(&with_article(&from_category), &with_article(category))
    }

    /// Returns the text with the new words. A word is replaced only where it begins:
    /// `restock-items` stays.
    pub(super) fn rename(&self, text: &str) -> String {
        let mut renamed = String::with_capacity(text.len());
        let mut before = None;
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let found = self.0.iter().find(|(from, _)| rest.starts_with(from.as_str()));
            let found = found.filter(|_| !before.is_some_and(char::is_alphanumeric));
            let (from, to) = match found {
                Some((from, to)) => (from.len(), to.as_str()),
                None => (first.len_utf8(), &rest[..first.len_utf8()]),
            };
            renamed.push_str(to);
            before = rest[..from].chars().next_back();
            rest = &rest[from..];
        }
        renamed
    }
}

pub(super) fn upper_camel(name: &str) -> String {
    name.split('-').map(capital).collect()
}

fn snake(words: &str) -> String {
    words.replace([' ', '-'], "_")
}

/// Returns the text with a capital first letter.
fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars
        .next()
        .map(|first| first.to_uppercase().collect::<String>() + chars.as_str())
        .unwrap_or_default()
}

/// Returns the plural of an English noun, or of words that end with one: `purchase orders`,
/// `categories`.
fn plural(words: &str) -> String {
    let is_vowel = |c: char| "aeiou".contains(c);
    match words.strip_suffix('y') {
        Some(stem) if !stem.ends_with(is_vowel) => format!("{stem}ies"),
        _ if ["s", "x", "z", "ch", "sh"].iter().any(|end| words.ends_with(end)) => {
            format!("{words}es")
        }
        _ => format!("{words}s"),
    }
}

/// Returns an English noun with its article: `an appointment`.
fn with_article(word: &str) -> String {
    let article = if word.starts_with(|c| "aeiou".contains(c)) { "an" } else { "a" };
    format!("{article} {word}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_their_english_plural_and_article() {
        for (words, expected) in [
            ("purchase order", "purchase orders"),
            ("category", "categories"),
            ("delivery day", "delivery days"),
            ("address", "addresses"),
            ("box", "boxes"),
            ("branch", "branches"),
        ] {
            assert_eq!(plural(words), expected);
        }
        assert_eq!(
            ["appointment", "invoice", "tank"].map(with_article),
            ["an appointment", "an invoice", "a tank"]
        );
    }

    #[test]
    fn every_form_of_a_name_is_replaced_and_nothing_else() {
        let names = Names::default()
            .aggregate("stock-item", "appointment", "Appointment", "appointment")
            .name("stock-cards", "open-days");
        for (text, expected) in [
            (
                "A stock item: `/stock-items`, stock items",
                "An appointment: `/appointments`, appointments",
            ),
            (
                "a stockitem, stock_item::StockItem, STOCK_ITEM",
                "an appointment, appointment::Appointment, APPOINTMENT",
            ),
            ("fn a_stock_item_is()", "fn an_appointment_is()"),
            (
                "StockCardsTable, Stock cards, stock-cards, stockCards",
                "OpenDaysTable, Open days, open-days, openDays",
            ),
            ("stockings, a stocking, restock-items", "stockings, a stocking, restock-items"),
        ] {
            assert_eq!(names.rename(text), expected);
        }
        // A type may have another name than its module.
        let names =
            Names::default().aggregate("stock-item", "account", "BankAccount", "bankaccount");
        assert_eq!(
            names.rename("stock_item::{State, StockItem}, \"stockitem\""),
            "account::{State, BankAccount}, \"bankaccount\""
        );
        // A new name that is also a name of the starter is not replaced a second time.
        let names =
            Names::default().name("stock-cards", "stock-diary").name("stock-diary", "stock-cards");
        assert_eq!(names.rename("stock-cards StockDiary"), "stock-diary StockCards");
    }
}
