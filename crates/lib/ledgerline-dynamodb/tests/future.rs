//! Commits of the future: items that a later version of the program may write. This version refuses
//! each that it would misread, and names its stream and version. It ignores what it does not know.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use aws_sdk_dynamodb::Client;
use ledgerline::{
    Aggregate, Consistency, EventLog, Range, StoreError, StreamId, contract::commit, load,
    testing::tank::Tank,
};
use ledgerline_dynamodb::{DynamoDbStore, ScanPart, commit_from_image};
use serde::Deserialize;
use serde_dynamo::Item;

/// The items. A fanout reads the same ones in its own test.
const CORPUS: &str = include_str!("commits_of_the_future.json");

#[derive(Deserialize)]
struct Corpus {
    refused: Vec<Refused>,
    read: Vec<Read>,
}

/// An item that no reader accepts.
#[derive(Deserialize)]
struct Refused {
    about: String,
    /// The attribute that the error names.
    attribute: String,
    item: Item,
}

/// An item with attributes that readers ignore.
#[derive(Deserialize)]
struct Read {
    about: String,
    item: Item,
}

fn corpus() -> Corpus {
    serde_json::from_str(CORPUS).unwrap()
}

/// Stores these items as they are.
async fn store_with(items: impl IntoIterator<Item = Item>) -> DynamoDbStore {
    let dynamodb = ledgerline_testing::dynamodb(&["CommitsTable"]).await;
    let client = Client::new(&dynamodb.sdk_config());
    let table = ledgerline_testing::table("CommitsTable");
    for item in items {
        let put = client.put_item().table_name(&table).set_item(Some(item.into()));
        put.send().await.unwrap();
    }
    DynamoDbStore::new(client, table)
}

fn stream(item: &Item) -> Result<StreamId, ()> {
    let name: String = serde_dynamo::from_attribute_value(item.inner()["stream"].clone()).unwrap();
    StreamId::try_from(name).map_err(|_| ())
}

const ALL: Range = Range { after: 0, up_to: u64::MAX, limit: None };

#[tokio::test]
async fn every_read_refuses_a_commit_that_it_would_misread_and_names_stream_and_version() {
    for Refused { about, attribute, item } in corpus().refused {
        let image = commit_from_image(item.clone()).unwrap_err().to_string();
        assert!(image.contains(&format!("`{attribute}`")), "{about}: {image}");
        let store = store_with([item.clone()]).await;
        let north = Tank::stream("north").unwrap();
        store.append(&commit(&north, 1), None).await.unwrap();
        let page = store.scan(ScanPart::WHOLE, None, &["tank"], 100).await.unwrap();
        assert_eq!((page.damaged, page.commits.len()), (1, 1), "{about}: a rebuild counts it");
        let Ok(stream) = stream(&item) else {
            assert_eq!(attribute, "stream", "{about}");
            continue;
        };
        let strong = Consistency::Strong;
        for error in [
            store.get(&stream, 2).await.unwrap_err(),
            store.get_all(&[(&stream, 2)]).await.unwrap().remove(0).unwrap_err(),
            store.read(&stream, ALL, strong).await.unwrap_err(),
            store.read_forwards(&stream, 0, u64::MAX).await.unwrap_err(),
            store.read_for_fold(&stream, ALL, strong).await.unwrap_err(),
            store.read_forwards_for_fold(&stream, 0, u64::MAX).await.unwrap_err(),
        ] {
            let StoreError::Corrupt { stream: named, version, reason } = error else {
                panic!("{about}: {error}")
            };
            assert_eq!((named.as_str(), version), (stream.as_str(), 2), "{about}");
            assert!(reason.contains(&format!("`{attribute}`")), "{about}: {reason}");
        }
        assert!(load::<Tank>(&store, &stream, None, strong).await.is_err(), "{about}");
        let other = store.read(&north, ALL, strong).await.unwrap();
        assert_eq!(other.commits.len(), 1, "{about}: the other stream is read");
    }
}

#[tokio::test]
async fn attributes_of_the_future_change_nothing() {
    let corpus = corpus().read;
    let store = store_with(corpus.iter().map(|read| read.item.clone())).await;
    for Read { about, item } in corpus {
        let stream = stream(&item).unwrap();
        let read = store.get(&stream, 2).await.unwrap().unwrap();
        assert_eq!(read, commit_from_image(item).unwrap().commit, "{about}");
        assert_eq!((read.events.len(), read.meta.actor.as_deref()), (1, Some("ada")), "{about}");
        let page = store.read_for_fold(&stream, ALL, Consistency::Strong).await.unwrap();
        assert_eq!(page.commits[0].events, read.events, "{about}");
        assert_eq!(page.commits[0].state, read.state, "{about}");
    }
}

/// A page may end at a key that this version cannot read. The scan continues behind it.
#[tokio::test]
async fn a_scan_does_not_end_at_an_unreadable_key() {
    let corpus = corpus();
    let items = corpus.refused.into_iter().map(|refused| refused.item);
    let items: Vec<_> = items.chain(corpus.read.into_iter().map(|read| read.item)).collect();
    let count = items.len() as u64;
    let store = store_with(items).await;
    let (mut after, mut examined) = (None, 0);
    loop {
        let page = store.scan(ScanPart::WHOLE, after.as_ref(), &[], 1).await.unwrap();
        examined += page.damaged + page.commits.len() as u64;
        after = page.after;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(examined, count);
}
