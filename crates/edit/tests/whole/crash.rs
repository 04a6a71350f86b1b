//! Power cuts at every write of an edit: our replay and e2fsck's both recover exactly the old tree
//! or exactly the new one, and e2fsck finds nothing wrong.

use std::sync::Arc;

use pext4_block::fault::Operation;
use pext4_block::{Device, FaultDevice, RamDevice, RecordDevice};
use pext4_edit::{CommitOutcome, EditError, EditOptions, EditSession, Plan, Tuning, Way};
use pext4_fs::{MountOptions, Volume};
use pext4_ondisk::feature::Incompat;
use pext4_ondisk::superblock::{self, Superblock};
use pext4_testkit::Random;
use pext4_testkit::campaign::check_device;
use pext4_testkit::crash::window::{Budget, fates, image, tell, windows};
use pext4_testkit::effort;
use pext4_testkit::oracle::check::{e2fsck, recover};
use pext4_testkit::oracle::format::{Features, Format, everyday};
use pext4_testkit::tree::Tree;
use pext4_testkit::volume::tree_of;

use crate::common::{filled, mixture, write};

/// The image after a cut and both recoveries.
fn recovered(left: &RamDevice) -> Result<[Tree; 2], String> {
    let ours = Arc::new(left.fork());
    let device: Arc<dyn Device> = Arc::<RamDevice>::clone(&ours);
    let first = tree_of(device, false).map_err(|error| format!("our recovery: {error:#}"))?;
    check_device(&ours).map_err(|error| format!("after our recovery: {error:#}"))?;
    let folder = effort::scratch();
    let path = folder.path().join("image");
    left.save(&path).expect("there is room");
    recover(&path).map_err(|error| format!("e2fsck's recovery: {error:#}"))?;
    let theirs = RamDevice::load(&path).expect("readable");
    let second = tree_of(Arc::new(theirs), true).map_err(|error| format!("{error:#}"))?;
    Ok([first, second])
}

fn same(one: &Tree, two: &Tree) -> bool {
    one.differences(two, false).is_empty()
}

/// Records one edit, and checks the images that cuts of it leave.
fn examine(format: &Format, seed: u64, options: &EditOptions) {
    let what = format!("seed {seed}, image {}, {options:?}", format.describe());
    let mut random = Random::new(seed);
    let base = filled(format, &mut random);
    let below = Arc::new(base.fork());
    let device = Arc::new(RecordDevice::new(Arc::<RamDevice>::clone(&below)));
    let over: Arc<dyn Device> = Arc::<RecordDevice>::clone(&device);
    let mut session = EditSession::from_device(over, options).expect("it opens");
    mixture(&mut session, &mut random);
    let tuning = Tuning {
        label: Some(b"new".to_vec()),
        uuid: Some([7; 16]),
        ..Tuning::default()
    };
    session.tune(&tuning).expect("they can be");
    let plan = session
        .finish()
        .unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(matches!(plan, Plan::Transaction { .. }), "{what}: {plan:?}");
    check_device(&below).unwrap_or_else(|error| panic!("{what}: {error:#}"));
    let tree = |device: RamDevice| tree_of(Arc::new(device), true).expect("a sound image");
    let (old, new) = (tree(base.fork()), tree(below.fork()));
    assert!(!same(&old, &new), "{what}: the edit does something");

    let events = device.events();
    let durable = base.fork();
    let (mut applied, mut seen) = (0, [false; 2]);
    let budget = Budget {
        exhaust: 4,
        window: 12,
        total: usize::MAX,
    };
    for window in windows(&events) {
        for event in &events[applied..window.start] {
            event.apply(&durable).expect("it fits");
        }
        applied = window.start;
        for fates in fates(&window, &events, budget, &mut random) {
            let left = image(&durable, &events, &window, &fates);
            let complain = |text: String| -> ! {
                let path = effort::failures().join(format!("edit-{seed}.img"));
                let saved = left.save(&path);
                let fates = tell(&window, &events, &fates);
                panic!("{what}: {fates}\n{text}\n({saved:?}) {}", path.display());
            };
            let trees = recovered(&left).unwrap_or_else(|text| complain(text));
            let is_new = trees.each_ref().map(|tree| same(tree, &new));
            for (tree, is_new) in trees.iter().zip(is_new) {
                if !is_new && !same(tree, &old) {
                    let differences = tree.differences(&old, false).join("\n  ");
                    complain(format!("neither old nor new; to the old:\n  {differences}"));
                }
            }
            if is_new[0] != is_new[1] {
                complain("the two recoveries differ".to_owned());
            }
            seen[usize::from(is_new[0])] = true;
        }
    }
    assert_eq!(seen, [true; 2], "{what}: cuts before and after the commit");
}

#[test]
fn a_cut_edit_is_made_or_not() {
    for seed in effort::seeds(3) {
        for format in everyday(16 << 20) {
            if format.features != Features::NoJournal {
                examine(&format, seed, &EditOptions::default());
            }
        }
    }
}

#[test]
fn a_cut_edit_that_wrote_through_is_made_or_not() {
    let options = EditOptions {
        memory: 32 << 10,
        ..EditOptions::default()
    };
    for seed in effort::seeds(3) {
        let format = Format::new(16 << 20, 1024, Features::Upstream).inodes(2048);
        examine(&format, seed, &options);
    }
}

/// An edit on a device of which these calls fail. Returns whether it was acknowledged, and whether
/// it was applied.
fn edit_failing(base: &RamDevice, old: &Tree, seed: u64, kind: Operation, from: u64) -> [bool; 2] {
    let below = Arc::new(base.fork());
    let device = Arc::new(FaultDevice::new(Arc::<RamDevice>::clone(&below)));
    let over: Arc<dyn Device> = Arc::<FaultDevice>::clone(&device);
    let mut session = EditSession::from_device(over, &EditOptions::default()).expect("it opens");
    mixture(&mut session, &mut Random::new(seed));
    device.fail_from(kind, from);
    let done = session.finish();
    device.heal();
    let what = format!("seed {seed}, {kind} {from}");
    let [ours, theirs] = recovered(&below).unwrap_or_else(|text| panic!("{what}: {text}"));
    assert!(same(&ours, &theirs), "{what}: the two recoveries differ");
    [done.is_ok(), !same(&ours, old)]
}

#[test]
fn an_edit_on_a_device_that_fails_is_made_or_not() {
    for seed in effort::seeds(2) {
        let format = Format::new(16 << 20, 1024, Features::Upstream).inodes(2048);
        let base = filled(&format, &mut Random::new(seed));
        let old = tree_of(Arc::new(base.fork()), true).expect("sound");
        for (kind, step) in [(Operation::Flush, 1), (Operation::Write, 7)] {
            let mut outcomes = Vec::new();
            for round in 0.. {
                let [done, there] = edit_failing(&base, &old, seed, kind, round * step);
                assert!(
                    there || !done,
                    "seed {seed}: what was acknowledged is there"
                );
                outcomes.push(there);
                if done {
                    break;
                }
            }
            assert!(!outcomes[0], "seed {seed}: nothing could be written");
            assert!(outcomes.is_sorted(), "seed {seed}, {kind}: {outcomes:?}");
        }
    }
}

#[test]
fn an_edit_that_is_given_up_changes_no_used_block() {
    for seed in effort::seeds(4) {
        let mut random = Random::new(seed);
        let format = Format::new(16 << 20, 1024, Features::Upstream).inodes(2048);
        let base = filled(&format, &mut random);
        for memory in [0, 64 << 20] {
            let options = EditOptions {
                memory,
                ..EditOptions::default()
            };
            let device = Arc::new(base.fork());
            let record = Arc::new(RecordDevice::new(Arc::<RamDevice>::clone(&device)));
            let over: Arc<dyn Device> = Arc::<RecordDevice>::clone(&record);
            let mut session = EditSession::from_device(over, &options).expect("it opens");
            mixture(&mut session, &mut random);
            drop(session);
            let writes = record.mark();
            assert_eq!(writes > 0, memory == 0, "seed {seed}: {writes} writes");
            check_device(&device).expect("sound");
            let tree = |device: RamDevice| tree_of(Arc::new(device), true).expect("sound");
            tree(base.fork()).assert_same(&tree(device.fork()), "nothing happened");
        }
    }
}

#[test]
fn what_fits_no_transaction_is_refused_where_nothing_can_be_cloned() {
    let mut random = Random::new(7);
    let format = Format::new(16 << 20, 1024, Features::NoJournal);
    let base = filled(&format, &mut random);
    let error = EditSession::from_device(Arc::new(base.fork()), &EditOptions::default());
    let error = error.expect_err("it has no journal").to_string();
    assert!(error.contains("no journal"), "{error}");
    let options = EditOptions {
        way: Way::Clone,
        ..EditOptions::default()
    };
    assert!(EditSession::from_device(Arc::new(base), &options).is_err());
}

/// The error of a failed edit tells the caller whether to repeat it.
#[test]
fn a_failed_commit_says_what_has_become_of_the_edit() {
    let mut random = Random::new(11);
    let base = filled(
        &Format::new(16 << 20, 1024, Features::Upstream),
        &mut random,
    );
    let mut seen = [0; 3];
    for nth in 0..200 {
        let below = Arc::new(base.fork());
        let device = Arc::new(FaultDevice::new(Arc::<RamDevice>::clone(&below)));
        let over: Arc<dyn Device> = Arc::<FaultDevice>::clone(&device);
        let mut session =
            EditSession::from_device(over, &EditOptions::default()).expect("it opens");
        session
            .apply(&write("/made", 3000, &mut Random::new(nth)))
            .expect("room");
        device.fail_from(Operation::Write, nth);
        let Err(told) = session.finish() else {
            break;
        };
        device.heal();
        let volume = Volume::open(Arc::<RamDevice>::clone(&below), MountOptions::default());
        let volume = volume.expect("it is sound");
        let is_made = volume.paths().attributes("/made").is_ok();
        drop(volume);
        let text = told.to_string();
        let outcome = match told {
            EditError::Commit { outcome, .. } => Some(outcome),
            _ => None,
        };
        match outcome {
            Some(CommitOutcome::Committed) => {
                assert!(
                    is_made && text.contains("as soon as"),
                    "write {nth}: {text}"
                );
                seen[2] += 1;
            }
            Some(CommitOutcome::Unknown) => {
                assert!(
                    text.contains("whether the edit was made"),
                    "write {nth}: {text}"
                );
                seen[1] += 1;
            }
            None | Some(CommitOutcome::NotCommitted | CommitOutcome::Abandoned) => {
                let claims =
                    text.contains("as soon as") || text.contains("whether the edit was made");
                assert!(!is_made && !claims, "write {nth}: {text}");
                seen[0] += 1;
            }
        }
    }
    assert!(seen.iter().all(|&times| times > 0), "{seen:?}");
    assert_eq!(seen[1], 1, "only the commit block leaves it open: {seen:?}");
}

/// Edits `base` on a device of which the `nth` call of this kind fails, and those behind it unless
/// it fails `once`. Returns what is left.
fn failing_once_or_on(
    base: &RamDevice,
    kind: Operation,
    nth: u64,
    once: bool,
) -> (RamDevice, Result<Plan, EditError>) {
    let below = Arc::new(base.fork());
    let device = Arc::new(FaultDevice::new(Arc::<RamDevice>::clone(&below)));
    let over: Arc<dyn Device> = Arc::<FaultDevice>::clone(&device);
    let mut session = EditSession::from_device(over, &EditOptions::default()).expect("it opens");
    let change = write("/made", 3000, &mut Random::new(nth));
    session.apply(&change).expect("room");
    match once {
        true => device.fail_nth(kind, nth),
        false => device.fail_from(kind, nth),
    }
    let done = session.finish();
    (below.fork(), done)
}

#[test]
fn an_edit_that_fails_before_its_commit_block_leaves_no_started_journal_or_says_so() {
    let format = Format::new(16 << 20, 1024, Features::Upstream);
    let base = filled(&format, &mut Random::new(12));
    let old = tree_of(Arc::new(base.fork()), true).expect("sound");
    let folder = effort::scratch();
    let path = folder.path().join("image");
    for (kind, once) in [
        (Operation::Write, true),
        (Operation::Write, false),
        (Operation::Flush, true),
        (Operation::Flush, false),
    ] {
        let mut said = Vec::new();
        for nth in 0.. {
            let (left, done) = failing_once_or_on(&base, kind, nth, once);
            let told = done.expect_err("it fails at the commit block or before");
            let committed = [CommitOutcome::Unknown, CommitOutcome::Committed];
            if matches!(&told, EditError::Commit { outcome, .. } if committed.contains(outcome)) {
                break;
            }
            let what = format!("{kind} {nth}, once: {once}: {told}");
            let mut bytes = [0; superblock::SIZE];
            left.read_at(superblock::OFFSET, &mut bytes)
                .expect("memory");
            let superblock = Superblock::decode(&bytes).expect("it is whole");
            let says = told.to_string().contains("an empty journal");
            assert!(
                says || !superblock.features.has_incompat(Incompat::RECOVER),
                "{what}"
            );
            left.save(&path).expect("there is room");
            e2fsck(&path).unwrap_or_else(|error| panic!("{what}: {error:#}"));
            for tree in recovered(&left).unwrap_or_else(|text| panic!("{what}: {text}")) {
                tree.assert_same(&old, &what);
            }
            said.push(says);
        }
        assert!(said.len() > 2, "{kind}: {said:?}");
        // A write that failed is made up for; after a failed flush none is trusted.
        let always = kind == Operation::Flush;
        assert!(!once || said.iter().all(|&says| says == always), "{said:?}");
    }
}
