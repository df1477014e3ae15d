use proptest::prelude::*;
use serde_json::json;

use super::*;

fn full() -> Commit {
    Commit {
        stream: StreamId::new("tank", "1").unwrap(),
        version: 3,
        events: vec![RecordedEvent {
            event_type: "TankDrawn".into(),
            schema: 1,
            data: r#"{"amount":30}"#.into(),
        }],
        state: Some(RecordedState { schema: 1, data: r#"{"level":500}"#.into() }),
        command: "c-1".into(),
        at: "2026-11-21T09:30:00Z".parse().unwrap(),
        meta: Meta { actor: Some("ada".into()), ..Meta::default() },
    }
}

fn item(commit: &Commit) -> Item {
    commit_to_item(commit, usize::MAX)
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

/// The item is the storage format. A change that fails this test makes every stored commit
/// unreadable.
#[test]
fn the_attributes_of_a_commit_are_these() {
    let item: serde_json::Value = serde_dynamo::from_item(item(&full())).unwrap();
    assert_eq!(
        item,
        json!({
            "stream": "tank-1",
            "version": 3,
            "events": [{ "type": "TankDrawn", "schema": 1, "data": "{\"amount\":30}" }],
            "state": { "schema": 1, "data": "{\"level\":500}" },
            "command": "c-1",
            "at": "2026-11-21T09:30:00Z",
            "meta": { "actor": "ada" },
        })
    );
}

fn any_commit() -> impl Strategy<Value = Commit> {
    // Numbers of every length, because one more digit may be one more byte.
    let schema = || prop_oneof![1..1_000_u32, any::<u32>()];
    let version = prop_oneof![1..2_000_u64, 1..=u64::MAX];
    let event = (".{0,9}", schema(), ".{0,40}")
        .prop_map(|(event_type, schema, data)| RecordedEvent { event_type, schema, data });
    let state = (schema(), ".{0,40}").prop_map(|(schema, data)| RecordedState { schema, data });
    let text = || proptest::option::of(".{0,20}");
    let meta = (text(), text(), text(), text(), text()).prop_map(
        |(actor, correlation_id, causation_id, source_address, trace_id)| Meta {
            actor,
            correlation_id,
            causation_id,
            source_address,
            trace_id,
        },
    );
    let at = (-62_000_000_000..253_000_000_000_i64, 0..1_000_000_000_i32)
        .prop_map(|(second, nanosecond)| jiff::Timestamp::new(second, nanosecond).unwrap());
    let name = ("[a-z]{1,9}", "[A-Za-z0-9]{1,9}")
        .prop_map(|(category, id)| StreamId::new(&category, &id).unwrap());
    let events = proptest::collection::vec(event, 0..4);
    let fields = (name, version, events, proptest::option::of(state), ".{0,20}", at, meta);
    fields.prop_map(|(stream, version, events, state, command, at, meta)| Commit {
        stream,
        version,
        events,
        state,
        command,
        at,
        meta,
    })
}

proptest! {
    /// The queues have commits in serde's form. With one form, an operator reads both alike.
    #[test]
    fn a_commit_is_stored_and_read_as_serde_has_it(commit in any_commit()) {
        let item = item(&commit);
        prop_assert_eq!(&item, &serde_dynamo::to_item::<_, Item>(&commit).unwrap());
        prop_assert_eq!(commit_from_image(item.into()).unwrap().commit, commit);
    }

    #[test]
    fn an_image_with_a_body_has_all_but_payloads_and_state(commit in any_commit()) {
        let (name, _) = crate::body_object::encode(std::slice::from_ref(&commit));
        let fields = item_with_body(&commit, name.to_string()).into_iter();
        let item: Item = fields.map(|(name, value)| (name.to_owned(), value)).collect();
        prop_assert!(super::commit(&commit.stream, item.clone()).is_err() || commit.events.is_empty());
        let mut expected = Commit { state: None, ..commit };
        expected.events.iter_mut().for_each(|event| event.data = "null".to_owned());
        let image = commit_from_image(item.into()).unwrap();
        prop_assert_eq!(image, CommitImage { commit: expected, has_body: true });
    }

    #[test]
    fn a_commit_is_read_from_text_and_from_gzip(commit in any_commit(), compress_over in prop_oneof![0..40_usize, Just(usize::MAX)]) {
        let fields = commit_to_item(&commit, compress_over);
        prop_assert_eq!(commit_bytes(&commit, compress_over), bytes_of(&fields));
        let item: Item =
            fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        prop_assert_eq!(&commit_from_image(item.clone().into()).unwrap().commit, &commit);
        prop_assert_eq!(&super::commit(&commit.stream, item.clone()).unwrap(), &commit);
        prop_assert_eq!(step(&commit.stream, item).unwrap(), FoldedCommit::from(commit));
    }
}

#[test]
fn fields_of_a_later_version_are_ignored() {
    let mut item = item(&full());
    item.insert("region".into(), AttributeValue::Bool(true));
    for name in [META, STATE] {
        let Some(AttributeValue::M(fields)) = item.get_mut(name) else { panic!("{name}") };
        fields.insert("region".into(), AttributeValue::Bool(true));
    }
    assert_eq!(commit(&full().stream, item).unwrap(), full());
}

/// A load must not treat a damaged commit as a missing one: the balance would be wrong.
#[test]
fn a_damaged_step_is_refused_by_name_and_without_its_values() {
    let secret = || AttributeValue::S("secret!".into());
    let some = |value: AttributeValue| AttributeValue::L(vec![value]);
    let event = || map([(TYPE, text("TankFilled")), (SCHEMA, AttributeValue::N("1".into()))]);
    for (name, value, version) in [
        (VERSION, None, 0),
        (VERSION, Some(secret()), 0),
        (VERSION, Some(AttributeValue::N("0".into())), 0),
        (EVENTS, None, full().version),
        (EVENTS, Some(secret()), full().version),
        (EVENTS, Some(some(secret())), full().version),
        (EVENTS, Some(some(event())), full().version),
        (STATE, Some(secret()), full().version),
        (STATE, Some(map([(DATA, secret())])), full().version),
    ] {
        let mut item = item(&full());
        item.remove(name);
        item.extend(value.map(|value| (name.to_owned(), value)));
        let error = step(&full().stream, item).unwrap_err();
        let StoreError::Corrupt { stream, version: named, reason } = error else {
            panic!("{error}")
        };
        assert_eq!((stream.as_str(), named), (full().stream.as_str(), version), "{name}");
        assert!(reason.contains(&format!("`{name}`")) && !reason.contains("secret!"), "{reason}");
    }
}

#[test]
fn a_damaged_image_is_refused_by_name_and_without_its_values() {
    let damaged = |name: &str, value: Option<AttributeValue>| {
        let mut item = item(&full());
        item.remove(name);
        item.extend(value.map(|value| (name.to_owned(), value)));
        commit_from_image(item.into()).unwrap_err().to_string()
    };
    for name in [STREAM, VERSION, EVENTS, COMMAND, AT, META] {
        assert!(damaged(name, None).contains(&format!("`{name}`")));
    }
    assert!(damaged(VERSION, Some(AttributeValue::N("0".into()))).contains("`version`"));
    assert!(
        damaged(EVENTS, Some(AttributeValue::L(vec![AttributeValue::Bool(true)])))
            .contains("`events`")
    );
    assert!(damaged(META, Some(map([(ACTOR, AttributeValue::Bool(true))]))).contains("`meta`"));
    for name in [STREAM, VERSION, EVENTS, STATE, AT, META] {
        let message = damaged(name, Some(AttributeValue::S("secret!".into())));
        assert!(
            message.contains(&format!("`{name}`")) && !message.contains("secret!"),
            "{message}"
        );
    }
}
