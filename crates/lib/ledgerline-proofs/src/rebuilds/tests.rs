//! Tests of the proof of rebuilds.

use ledgerline::{
    manifest::Action,
    spec::valid,
    testing::tank::{Amount, Command},
};
use ledgerline_dynamodb::SegmentProgress;

use super::*;
use crate::{
    application::History,
    tank_application::{filled, install, tanks},
};

/// The manifest without the grant to scan the log. Everything but a rebuild works with it.
fn without_scan(kind: Kind) -> Manifest {
    let mut manifest = kind.manifest();
    manifest.tables.iter_mut().for_each(|table| _ = table.actions.remove(&Action::Scan));
    manifest
}

#[test]
fn a_missing_grant_that_only_a_rebuild_needs_is_reported() {
    let effort = Effort { seed: 1, long: false, runs: Some(20) };
    assert!(play(&effort, &tanks(), Kind::manifest, Rollback::Compared).is_ok());
    let finding =
        play(&effort, &tanks(), without_scan, Rollback::Compared).err().unwrap().to_string();
    assert!(finding.contains("not authorized to perform: dynamodb:Scan"), "{finding}");
}

#[test]
fn a_rollback_without_a_comparison_is_found() {
    let effort = Effort { seed: 1, long: false, runs: Some(40) };
    let blind = play(&effort, &tanks(), Kind::manifest, Rollback::Blind);
    let finding = format!("{:#}", blind.err().unwrap());
    assert!(finding.contains("go back") || finding.contains("goes back"), "{finding}");
}

/// A worker was killed after it wrote rows and before it saved its progress. Every batch finds
/// newer positions in the table, so the next worker rebuilds each stream alone.
#[test]
fn a_rebuild_stream_by_stream_finishes_in_invocations_of_ten_seconds() {
    let world = World::new(&["CommitsTable", "RequestsTable", "FillsTable"]).unwrap();
    world.runtime.block_on(async {
        let log = World::store_at(&world.wire);
        let wire = &world.wire;
        for tank in 0..600 {
            for commit in filled(&format!("{tank:03}"), 5) {
                log.append(&commit, None).await.unwrap();
            }
        }
        let table = ViewTable::new(wire.dynamodb(), table("FillsTable"), &FILLS);
        let none = Generations::default();
        begin(&table, &none).await.unwrap();
        let asked = request(0, 1, Vec::new());
        let instance = Instance::new(wire, Kind::Sums, &Role::new(&Kind::Sums.manifest()));
        let rebuild = async || {
            for invocations in 1..20 {
                let rebuilt = timeout(Duration::from_secs(10), instance.rebuild(&asked)).await;
                let rebuilt = rebuilt.expect("an invocation ends by itself").unwrap();
                assert_eq!(rebuilt.failed, []);
                if rebuilt.is_done {
                    return (invocations, rebuilt.commits);
                }
            }
            panic!("the rebuild comes to no end");
        };
        assert_eq!(rebuild().await.1, 1_200);
        let part = SegmentProgress::default();
        table.at(MADE).put_part(&SegmentProgress::name(0, 1), &part).await.unwrap();
        // A slow table spreads the rebuild over several invocations.
        wire.follow(Plan::Slow, 1);
        let (invocations, commits) = rebuild().await;
        assert_eq!(commits, 1_200);
        assert!(invocations > 1, "it is more than the work of one invocation");
    });
}

/// A world with the tables of all views, and the table of this view.
fn world(kind: Kind) -> (World, ViewTable) {
    let world = World::new(&["CommitsTable", "RequestsTable", "FillsTable", "SitesTable"]).unwrap();
    let table = kind.table(&world.wire);
    (world, table)
}

/// Returns the commits of a tank.
fn history(length: u64) -> Vec<Commit> {
    let fill = || Command::Fill(Amount { amount: valid(1), note: None });
    let commands = std::iter::once(install()).chain((1..length).map(|_| fill()));
    let (id, actor, commands) = ("1".to_owned(), "ada".into(), commands.collect());
    History::<Tank> { id, actor, commands }.commits_with_states()
}

/// Switches reads to the other generation, as it is. Every process has seen the switch.
async fn switch(table: &ViewTable, to: u32) {
    let from = table.generations().await.unwrap();
    let switched = from.switch(to, Timestamp::UNIX_EPOCH).unwrap();
    assert!(change(table, &from, switched).await.unwrap());
}

#[test]
fn a_faulty_row_of_the_previous_generation_marks_it_and_holds_up_no_commit() {
    for kind in [Kind::Sums, Kind::Lists, Kind::States] {
        let (world, table) = world(kind);
        world.runtime.block_on(async {
            begin(&table, &Generations::default()).await.unwrap();
            switch(&table, MADE).await;
            let instance = Instance::new(&world.wire, kind, &Role::new(&kind.manifest()));
            let commits = filled("1", 5);
            let stream = &commits[0].stream;
            World::store_at(&world.wire).append(&commits[0], None).await.unwrap();
            assert_eq!(instance.deliver(&[&commits[0]]).await, [true]);
            let (partition, sort, attribute) = match kind {
                Kind::Sums => (stream.as_str(), Some("#position"), "position"),
                // The newest row.
                Kind::Lists => (stream.id(), Some("~"), "#position"),
                Kind::States => (stream.id(), None, "version"),
            };
            let text = |text: &str| AttributeValue::S(text.to_owned());
            let put = world.wire.dynamodb().put_item().table_name(table.name());
            let put = put.item("tankId", text(partition)).item(attribute, text("no number"));
            let put = sort.into_iter().fold(put, |put, sort| put.item("entry", text(sort)));
            put.send().await.unwrap();

            let compared = table.generations().await.unwrap();
            World::store_at(&world.wire).append(&commits[1], None).await.unwrap();
            assert_eq!(instance.deliver(&[&commits[1]]).await, [true], "{kind:?}");
            assert_eq!(position(table.at(MADE), kind, stream).await.unwrap(), 2, "{kind:?}");
            let generations = table.generations().await.unwrap();
            let behind = generations.standby.as_ref().unwrap().behind;
            assert!(behind.is_some(), "{kind:?}: {generations:?}");
            // An operator compared the generations before, and cannot roll back now.
            let back = compared.switch(0, Timestamp::now()).unwrap();
            assert!(!change(&table, &compared, back).await.unwrap(), "{kind:?}");
            // A generation that reads are about to use holds the commit up.
            let back = generations.switch(0, Timestamp::now()).unwrap();
            assert!(change(&table, &generations, back).await.unwrap());
            assert!(!table.at(0).mark_behind(Some(stream)).await.unwrap());
        });
    }
}

/// A change of the log after the active generation has applied the commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Damage {
    /// None: the gap is too long for one delivery.
    Nothing,
    Hole,
    Unreadable,
}

#[test]
fn a_new_generation_that_cannot_get_a_commit_is_marked_and_holds_up_no_commit() {
    for (kind, damage) in [
        (Kind::Sums, Damage::Nothing),
        (Kind::Lists, Damage::Nothing),
        (Kind::Sums, Damage::Hole),
        (Kind::Lists, Damage::Unreadable),
    ] {
        let (world, table) = world(kind);
        world.runtime.block_on(async {
            // Given a new generation that lacks the whole stream, and a comparison that has ended,
            let instance = || Instance::new(&world.wire, kind, &Role::new(&kind.manifest()));
            let commits = history(60);
            let (last, earlier) = commits.split_last().unwrap();
            for commit in earlier {
                World::store_at(&world.wire).append(commit, None).await.unwrap();
            }
            assert_eq!(instance().deliver(&[&earlier[58]]).await, [true]);
            begin(&table, &Generations::default()).await.unwrap();
            damage_log(&world.wire, &earlier[20], damage).await;
            let compared = table.remove_marks().await.unwrap();
            // when a function gets the last commit,
            World::store_at(&world.wire).append(last, None).await.unwrap();
            assert_eq!(instance().deliver(&[last]).await, [true], "{kind:?} {damage:?}");
            // then the active generation has it, and the switch finds that the new one is behind.
            assert_eq!(position(table.at(0), kind, &last.stream).await.unwrap(), 60);
            let switched = compared.switch(MADE, Timestamp::now()).unwrap();
            assert!(!change(&table, &compared, switched).await.unwrap(), "{kind:?} {damage:?}");
            let generations = table.generations().await.unwrap();
            let marks = generations.marks_since(&compared).unwrap();
            assert_eq!(marks.streams, [last.stream.clone()].into(), "{kind:?} {damage:?}");
        });
    }
}

async fn damage_log(wire: &Wire, commit: &Commit, damage: Damage) {
    let stream = AttributeValue::S(commit.stream.to_string());
    let version = AttributeValue::N(commit.version.to_string());
    let delete = wire.dynamodb().delete_item().table_name(table("CommitsTable"));
    let delete = delete.key("stream", stream.clone()).key("version", version.clone());
    let put = wire.dynamodb().put_item().table_name(table("CommitsTable"));
    let put = put.item("stream", stream).item("version", version);
    match damage {
        Damage::Nothing => {}
        Damage::Hole => _ = delete.send().await.unwrap(),
        Damage::Unreadable => _ = put.send().await.unwrap(),
    }
}

/// The fanout's messages of all but the last commit were lost, and a rebuild read the log.
#[test]
fn a_delivery_repairs_the_whole_gap_of_the_previous_generation_in_invocations_of_ten_seconds() {
    for (kind, plan, length) in [
        (Kind::Sums, Plan::Calm, 60),
        (Kind::Lists, Plan::Calm, 60),
        (Kind::Sums, Plan::Slow, 130),
        (Kind::Lists, Plan::Slow, 130),
    ] {
        let (world, table) = world(kind);
        world.runtime.block_on(async {
            let commits = history(length);
            for commit in &commits {
                World::store_at(&world.wire).append(commit, None).await.unwrap();
            }
            begin(&table, &Generations::default()).await.unwrap();
            let role = Role::new(&kind.manifest());
            let worker = Instance::new(&world.wire, kind, &role);
            assert!(worker.rebuild(&request(0, 1, Vec::new())).await.unwrap().is_done);
            switch(&table, MADE).await;

            let is_slow = matches!(plan, Plan::Slow);
            world.wire.follow(plan, 1);
            let last = commits.last().unwrap();
            let instance = Instance::new(&world.wire, kind, &role);
            let mut invocations = 0;
            while position(table.at(0), kind, &last.stream).await.unwrap() < length {
                let delivered = timeout(Duration::from_secs(10), instance.deliver(&[last])).await;
                assert_eq!(delivered.expect("an invocation ends by itself"), [true], "{kind:?}");
                invocations += 1;
            }
            let generations = table.generations().await.unwrap();
            let is_marked = generations.standby.as_ref().unwrap().behind.is_some();
            assert_eq!((invocations > 1, is_marked), (is_slow, is_slow), "{kind:?}: {invocations}");
        });
    }
}
