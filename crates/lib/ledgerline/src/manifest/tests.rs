use super::*;
use crate::StateTable;

const ROWS: StateTable = StateTable { variable: "ROWS_TABLE", key: "id", indexes: &[] };

fn names(names: &[&'static str]) -> BTreeSet<Name> {
    names.iter().map(|name| Name::Borrowed(*name)).collect()
}

#[test]
fn two_routes_on_one_table_declare_it_once_with_the_indexes_of_both() {
    let by = |name| {
        let index =
            crate::Index { name, partition: "owner", sort: "name", projection: Projection::All };
        Table::from(ROWS).index(index)
    };
    let tables = [Table::grant(ROWS, [Action::GetItem]), by("a"), by("b"), by("a")];
    let manifest = tables.into_iter().fold(Manifest::new(Source::Schedule), Manifest::table);
    let manifest = manifest.variable("X");
    let [table] = manifest.tables.as_slice() else { panic!("{manifest:?}") };
    assert_eq!(table.actions, BTreeMap::from([(Action::GetItem, BTreeSet::new())]));
    assert_eq!(table.indexes.iter().map(|index| &*index.name).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(manifest.variables, names(&["ROWS_TABLE", "X"]));
}

#[test]
fn a_grant_of_all_keys_includes_narrower_grants_in_either_order() {
    let all = || Table::grant(ROWS, [Action::PutItem]);
    let some = |key| Table::from(ROWS).grant_keys([Action::PutItem], &names(&[key]));
    for (tables, keys) in [
        (vec![some("a-*"), some("b-*")], names(&["a-*", "b-*"])),
        (vec![some("a-*"), all()], BTreeSet::new()),
        (vec![all(), some("a-*")], BTreeSet::new()),
    ] {
        let manifest = tables.into_iter().fold(Manifest::new(Source::Schedule), Manifest::table);
        assert_eq!(manifest.tables[0].actions[&Action::PutItem], keys);
    }
}

/// Deployed stacks have manifests in this form, so every later version must read it.
#[test]
fn the_written_form_of_a_manifest_is_stable_and_is_read() {
    let index = crate::Index {
        name: "byOwner",
        partition: "owner",
        sort: "name",
        projection: Projection::KeysOnly,
    };
    let rows = Table::grant(ROWS, [Action::GetItem]).index(index);
    let source =
        Source::States { category: "tank".into(), events: names(&["TankBuilt"]), bus: false };
    let manifest = Manifest::new(source)
        .subscriber(SubscriberKind::StateProjector, rows)
        .table(
            Table::new("COMMITS_TABLE", "stream", Some("version"))
                .grant_keys([Action::Query], &names(&["tank-*"])),
        )
        .call("ses:SendEmail", "MAIL_SENDER")
        .optional("LIMIT")
        .metric("Unsent");
    let text = serde_json::to_string_pretty(&manifest).unwrap();
    assert_eq!(text, include_str!("sample.json").trim_end());
    assert_eq!(serde_json::from_str::<Manifest>(&text).unwrap(), manifest);
}

#[test]
fn a_text_that_is_not_valid_for_its_purpose_is_refused() {
    let read = |text: &str| serde_json::from_str::<Manifest>(text).unwrap();
    let sample = include_str!("sample.json");
    assert_eq!(read(sample).validate(), Ok(()));
    for (text, other, what) in [
        ("\"ROWS_TABLE\",\n      \"partition\"", "\"rows\",\n      \"partition\"", "variable"),
        ("\"LIMIT\"", "\"PATH=1\"", "variable"),
        ("\"partition\": \"id\"", "\"partition\": \"\"", "name of a key or index"),
        ("\"name\": \"byOwner\"", "\"name\": \"by/owner\"", "name of a key or index"),
        ("\"category\": \"tank\"", "\"category\": \"../tank\"", "category"),
        ("ses:SendEmail", "ses SendEmail", "action"),
        ("\"Unsent\"", "\"\\u001b[2J\"", "name of an event or metric"),
        ("\"TankBuilt\"", "\"Tank\\u202eBuilt\"", "name of an event or metric"),
        ("\"tank-*\"", "\"*\"", "pattern of keys"),
        ("\"tank-*\"", "\"*, tank-*\"", "pattern of keys"),
    ] {
        assert!(sample.contains(text), "{text}");
        let error = read(&sample.replacen(text, other, 1)).validate().unwrap_err();
        assert_eq!(error.what, what, "{error}");
        assert!(!error.to_string().contains('\u{1b}'), "{error}");
    }
}

#[test]
fn an_unknown_field_is_refused() {
    let text = include_str!("sample.json").replacen("\"metrics\"", "\"alarms\"", 1);
    let error = serde_json::from_str::<Manifest>(&text).unwrap_err().to_string();
    assert!(error.contains("unknown field `alarms`"), "{error}");
}

#[test]
fn names_in_policies_equal_names_in_the_manifest() {
    for action in [
        Action::BatchGetItem,
        Action::BatchWriteItem,
        Action::DeleteItem,
        Action::GetItem,
        Action::PartiQLInsert,
        Action::PutItem,
        Action::Query,
        Action::Scan,
        Action::UpdateItem,
    ] {
        assert_eq!(serde_json::to_value(action).unwrap(), action.as_str());
    }
    for scope in [Scope::Read, Scope::Write, Scope::Events, Scope::Operate] {
        assert_eq!(serde_json::to_value(scope).unwrap(), scope.as_str());
    }
}
