use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::schemas::tests::misfit;

fn is_read<V: serde::de::DeserializeOwned>(value: &Value) -> bool {
    serde_json::from_value::<V>(value.clone()).is_ok()
}

#[test]
fn numbers_are_whole_and_in_range() {
    for (value, valid) in [
        (json!(1), true),
        (json!(5), true),
        (json!(0), false),
        (json!(6), false),
        (json!(-1), false),
        (json!(1.0), false),
        (json!("1"), false),
        (json!(4_294_967_297_u64), false),
        (json!(18_446_744_073_709_551_615_u64), false),
    ] {
        assert_eq!(is_read::<Number<1, 5>>(&value), valid, "{value}");
    }
}

#[test]
fn text_is_one_clean_line() {
    for (text, valid) in [
        ("a", true),
        ("abcde", true),
        ("abcdef", false),
        ("", false),
        (" a", false),
        ("a\nb", false),
        ("\u{fffe}", false),
        // Characters that are invisible or change the order of a text: U+200B, U+FEFF, bidi
        // controls, fillers.
        ("\u{200b}", false),
        ("a\u{feff}", false),
        ("a\u{202e}b", false),
        ("\u{2066}a\u{2069}", false),
        ("\u{3164}", false),
        ("\u{200d}", false),
        ("\u{fe0f}\u{fe0f}", false),
        ("\u{180b}", false),
        ("\u{1bca0}", false),
        ("Ada\u{200d}", false),
        ("Ada\u{e0041}", false),
        // A Persian word with a non-joiner, and a heart in colour.
        ("می\u{200c}خ", true),
        ("❤\u{fe0f}", true),
    ] {
        assert_eq!(is_read::<Text<5>>(&json!(text)), valid, "{text:?}");
    }
}

#[test]
fn long_text_may_have_lines_and_may_be_empty() {
    for (text, valid) in
        [("", true), ("a\n\tb", true), ("a\rb", false), ("\u{7}", false), ("abcdef", false)]
    {
        assert_eq!(is_read::<LongText<5>>(&json!(text)), valid, "{text:?}");
    }
}

#[test]
fn a_text_has_one_spelling() {
    for (sent, read) in [
        ("Jose\u{301}", Some("Jos\u{e9}")),
        ("Jos\u{e9}", Some("Jos\u{e9}")),
        ("\u{1100}\u{1161}\u{11a8}", Some("\u{ac01}")),
        ("\u{212b}", Some("\u{c5}")),
        ("e\u{323}\u{302}", Some("\u{1ec7}")),
        ("e\u{302}\u{323}", Some("\u{1ec7}")),
        ("\u{fb01}", Some("\u{fb01}")),
        // It becomes six characters.
        ("\u{fb2c}\u{fb2c}", None),
    ] {
        let text = Text::<5>::new(sent).ok().map(Text::into_inner);
        assert_eq!(text.as_deref(), read, "{sent:?}");
        let long = LongText::<5>::new(sent).ok().map(LongText::into_inner);
        assert_eq!(long.as_deref(), read, "{sent:?}");
    }
}

#[test]
fn ids_have_one_spelling() {
    let id = Id::new("163082D2-B005-45D7-9EB6-AA1F83EFD55D").unwrap();
    assert_eq!(id.get(), "163082d2-b005-45d7-9eb6-aa1f83efd55d");
    for bad in [
        "",
        "1",
        "163082d2b00545d79eb6aa1f83efd55d",
        "{163082d2-b005-45d7-9eb6-aa1f83efd55d}",
        "../x",
    ] {
        assert!(!is_read::<Id>(&json!(bad)), "{bad}");
    }
}

/// Texts of the characters that the rules treat differently, and of any others.
fn odd_text() -> impl Strategy<Value = String> {
    let odd = prop::sample::select(
        [
            'a', ' ', '\t', '\n', '\u{1}', '\u{85}', '\u{ad}', '\u{200b}', '\u{200d}', '\u{2028}',
            '\u{fe0f}', '\u{fffe}',
        ]
        .into_iter()
        .chain([
            '\u{1f3f4}',
            '\u{e0020}',
            '\u{e0067}',
            '\u{e007f}',
            '\u{e0100}',
            '\u{e01f0}',
            '\u{180b}',
            '-',
        ])
        .collect::<Vec<_>>(),
    );
    let character = prop_oneof![4 => odd, 1 => any::<char>()];
    prop::collection::vec(character, 0..8).prop_map(|characters| characters.into_iter().collect())
}

/// Whether the schema of a value object allows exactly the values that its rule allows. It may
/// also allow texts with characters beyond U+FFFF, and texts that have more characters in
/// normalization form C.
fn agrees<V: ValueObject>(value: &Value) -> bool {
    let text = value.to_string();
    let composed = ComposingNormalizerBorrowed::new_nfc().normalize(&text);
    let has_more = composed.chars().count() > text.chars().count();
    let is_read = V::Plain::from_json(value.clone()).and_then(V::read).is_some();
    let is_valid = misfit(&schema::<V>().to_value(), value).is_none();
    is_read == is_valid || is_valid && (has_more || text.contains(|c| c > '\u{ffff}'))
}

#[test]
fn the_schema_of_a_text_allows_what_the_rule_allows_for_each_character() {
    let (mut schemas, mut compiler) = (boon::Schemas::new(), boon::Compiler::new());
    compiler.add_resource("text.json", schema::<Text<9>>().to_value()).unwrap();
    let index = compiler.compile("text.json", &mut schemas).unwrap();
    for character in (0..=0x0011_0000).filter_map(char::from_u32) {
        for text in [format!("{character}"), format!("a{character}a")] {
            let is_read = Text::<9>::new(text.clone()).is_ok();
            let is_valid = schemas.validate(&json!(text), index).is_ok();
            assert!(is_valid == is_read || is_valid && character > '\u{ffff}', "{text:?}");
        }
    }
}

proptest! {
    #[test]
    fn the_schema_allows_exactly_the_values_that_the_rule_allows(
        text in odd_text(),
        number in -9..9_i64,
    ) {
        let id = json!("163082D2-b005-45d7-9eb6-aa1f83efd55d");
        for value in [json!(text), json!(number), json!(null), id] {
            prop_assert!(agrees::<Text<5>>(&value), "{value:?}");
            prop_assert!(agrees::<LongText<5>>(&value), "{value:?}");
            prop_assert!(agrees::<Number<1, 5>>(&value), "{value:?}");
            prop_assert!(agrees::<Id>(&value), "{value:?}");
        }
    }

    #[test]
    fn no_json_makes_a_value_panic(text in ".*", number in any::<f64>()) {
        for value in [json!(text), json!(number), json!(null), json!([text]), json!({})] {
            let _ = is_read::<Text<140>>(&value);
            let _ = is_read::<LongText<140>>(&value);
            let _ = is_read::<Number<1, 5>>(&value);
            let _ = is_read::<Id>(&value);
        }
    }

    /// Every accepted value obeys the rule of its type, and a refused number breaks it.
    #[test]
    fn every_accepted_value_obeys_its_rule(number in any::<i64>(), text in ".{0,8}") {
        match Number::<1, 5>::new(number) {
            Ok(made) => prop_assert!((1..=5).contains(made.get()) && *made.get() == number),
            Err(_) => prop_assert!(!(1..=5).contains(&number)),
        }
        if let Ok(made) = Text::<4>::new(text.clone()) {
            prop_assert!(made.get().chars().count() <= 4 && !made.get().chars().any(char::is_control));
            let composed = ComposingNormalizerBorrowed::new_nfc().normalize(&text);
            prop_assert_eq!(made.get(), &composed);
        }
    }
}
