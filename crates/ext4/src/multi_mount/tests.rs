//! Claims beside other machines, which act while a claim waits.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pext4_block::fault::Operation;
use pext4_block::{Device, FaultDevice, RamDevice};
use pext4_ondisk::BlockNumber;
use pext4_ondisk::feature::Incompat;
use pext4_ondisk::geometry::Geometry;
use pext4_ondisk::mmp::{Mmp, SEQUENCE_CHECKING, SEQUENCE_CLEAN, SIZE, Use};
use pext4_ondisk::superblock::Superblock;

use super::{Claim, Keeper, claim_time, padded, time_to_pass};
use crate::error::{Error, Result};
use crate::groups::testing::{Ground, image};
use crate::options::MountOptions;

/// An image with the protection, and what its superblock says.
struct Shared {
    device: Arc<RamDevice>,
    superblock: Superblock,
    geometry: Geometry,
}

impl Shared {
    fn make() -> Option<Self> {
        let device = image(&["-O", "mmp"], "16M")?;
        let mut bytes = [0; 1024];
        device.read_at(1024, &mut bytes).expect("it is there");
        let superblock = Superblock::decode(&bytes).expect("mke2fs wrote it");
        Some(Self {
            geometry: Geometry::of(&superblock).expect("mke2fs made it"),
            device,
            superblock,
        })
    }

    fn offset(&self) -> u64 {
        self.superblock.mmp_block.get() * u64::from(self.geometry.block_size)
    }

    fn block(&self) -> Mmp {
        let mut bytes = [0; SIZE];
        let read = self.device.read_at(self.offset(), &mut bytes);
        read.expect("it is there");
        Mmp::decode(&bytes, self.geometry.checksum_seed()).expect("it is sound")
    }

    /// What another machine writes.
    fn set(&self, sequence: u32) {
        let mut mmp = self.block();
        mmp.sequence = sequence;
        mmp.node_name = padded(b"other");
        let mut bytes = [0; SIZE];
        mmp.encode(&mut bytes, self.geometry.checksum_seed());
        let written = self.device.write_at(self.offset(), &bytes);
        written.expect("it is there");
    }

    /// Claims it; `act` is called with the number of each wait in the place of waiting. Returns how
    /// long it would have waited, each time.
    fn claim(&self, mut act: impl FnMut(usize)) -> (Result<Claim>, Vec<u64>) {
        let device = Arc::clone(&self.device) as Arc<dyn Device>;
        let mut waits = Vec::new();
        let mut wait = |time: Duration| {
            waits.push(time.as_secs());
            act(waits.len());
        };
        let claim = Claim::take(&device, &self.superblock, &self.geometry, &mut wait);
        let claim = claim.map(|claim| claim.expect("it has the feature"));
        (claim, waits)
    }
}

fn refusal(claim: Result<Claim>) -> String {
    match claim {
        Err(error @ Error::InUse(_)) => error.to_string(),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("it was claimed"),
    }
}

#[test]
fn an_unused_file_system_is_claimed_and_released() {
    let Some(shared) = Shared::make() else {
        return;
    };
    let (claim, waits) =
        shared.claim(|_| assert!(matches!(shared.block().usage(), Use::Mounted(_))));
    let mut claim = claim.expect("nobody has it");
    assert_eq!(waits, [1]);
    assert_eq!(shared.block().check_interval, 10);
    let before = shared.block().sequence;
    claim.renew().expect("nobody else wants it");
    assert_ne!(shared.block().sequence, before);
    claim.release().expect("nobody else wants it");
    let released = shared.block();
    let as_found = (SEQUENCE_CLEAN, 5);
    assert_eq!((released.sequence, released.check_interval), as_found);
    drop(claim);

    let (claim, _) = shared.claim(|_| ());
    let mut claim = claim.expect("nobody has it");
    shared.set(9);
    assert!(refusal(claim.release().map(|()| claim)).contains("\"other\""));
    assert_eq!(shared.block().sequence, 9, "that is another's");
    shared.set(SEQUENCE_CLEAN);

    let device = Arc::clone(&shared.device) as Arc<dyn Device>;
    let time = |superblock: &Superblock| {
        claim_time(&device, superblock, &shared.geometry).expect("the block is sound")
    };
    assert_eq!(time(&shared.superblock), Some(Duration::from_secs(1)));
    shared.set(7);
    assert_eq!(time(&shared.superblock), Some(Duration::from_secs(42)));
    let mut without = shared.superblock.clone();
    without.features.incompat.remove(Incompat::MMP);
    assert_eq!(time(&without), None);
}

/// A write that fails may have reached the device or not.
#[test]
fn a_claim_outlives_writes_that_fail() {
    let Some(shared) = Shared::make() else {
        return;
    };
    let below = Arc::clone(&shared.device) as Arc<dyn Device>;
    let device = Arc::new(FaultDevice::new(below));
    let over = Arc::<FaultDevice>::clone(&device) as Arc<dyn Device>;
    let claim = Claim::take(&over, &shared.superblock, &shared.geometry, &mut |_| ());
    let mut claim = claim.expect("nobody has it").expect("the feature");
    for operation in [Operation::Write, Operation::Flush] {
        let before = shared.block().sequence;
        for _ in 0..2 {
            device.fail_nth(operation, 0);
            let error = claim.renew().expect_err("the device fails");
            assert!(matches!(error, Error::Io(_)), "{operation}: {error}");
        }
        claim.renew().expect("the device works again");
        assert_ne!(shared.block().sequence, before, "{operation}");
    }
    device.fail_nth(Operation::Write, 0);
    claim.renew().expect_err("the device fails");
    shared.set(claim.mmp.sequence + 9);
    assert!(refusal(claim.renew().map(|()| claim)).contains("\"other\""));
}

/// A device whose writes take so long.
struct LateWrites {
    below: Arc<RamDevice>,
    by: Duration,
}

impl Device for LateWrites {
    fn size(&self) -> u64 {
        self.below.size()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> std::io::Result<()> {
        self.below.read_at(offset, into)
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> std::io::Result<()> {
        std::thread::sleep(self.by);
        self.below.write_at(offset, from)
    }

    fn flush(&self) -> std::io::Result<()> {
        self.below.flush()
    }
}

#[test]
fn a_claim_that_is_renewed_too_late_is_lost() {
    let Some(shared) = Shared::make() else {
        return;
    };
    let (claim, _) = shared.claim(|_| ());
    let mut claim = claim.expect("nobody has it");
    claim.renew().expect("it is in time");
    let before = shared.block().sequence;
    claim.mmp.check_interval = 0;
    let refused = claim.renew().expect_err("others wait for less");
    assert!(matches!(refused, Error::InUse(_)), "{refused}");
    assert_eq!(shared.block().sequence, before, "nothing was written");
    drop(claim);

    let device = Arc::new(LateWrites {
        below: Arc::clone(&shared.device),
        by: Duration::from_millis(1100),
    });
    let over = device as Arc<dyn Device>;
    let claim = Claim::take(&over, &shared.superblock, &shared.geometry, &mut |_| ());
    let mut claim = claim.expect("nobody has it").expect("the feature");
    claim.mmp.check_interval = 1;
    let refused = claim.renew().expect_err("its write ended too late");
    assert!(matches!(refused, Error::InUse(_)), "{refused}");
}

#[test]
fn a_machine_that_crashed_is_waited_for() {
    let Some(shared) = Shared::make() else {
        return;
    };
    shared.set(77);
    let (claim, waits) = shared.claim(|_| ());
    drop(claim.expect("the other machine has crashed"));
    assert_eq!(waits, [11, 11]);
    assert_eq!(shared.block().sequence, SEQUENCE_CLEAN);
}

#[test]
fn a_machine_that_uses_it_is_named_and_left_alone() {
    let Some(shared) = Shared::make() else {
        return;
    };
    shared.set(77);
    let (claim, waits) = shared.claim(|_| shared.set(78));
    let refusal = refusal(claim);
    assert!(refusal.contains("\"other\""), "{refusal}");
    assert_eq!(waits, [11]);
    assert_eq!(shared.block().sequence, 78);
}

#[test]
fn of_two_that_claim_at_once_the_last_one_wins() {
    let Some(shared) = Shared::make() else {
        return;
    };
    let (claim, _) = shared.claim(|_| shared.set(5));
    assert!(refusal(claim).contains("\"other\""));
    assert_eq!(
        shared.block().sequence,
        5,
        "it was not released for the other"
    );
}

#[test]
fn a_checker_and_what_is_unknown_refuse_at_once() {
    let Some(shared) = Shared::make() else {
        return;
    };
    for (sequence, named) in [
        (SEQUENCE_CHECKING, "checker"),
        (SEQUENCE_CHECKING + 9, "unknown"),
    ] {
        shared.set(sequence);
        let before = shared.block();
        let (claim, waits) = shared.claim(|_| ());
        let refusal = refusal(claim);
        assert!(refusal.contains(named), "{refusal}");
        assert!(waits.is_empty());
        assert_eq!(shared.block(), before);
    }
}

#[test]
fn a_block_that_cannot_be_one_is_corrupt() {
    let Some(mut shared) = Shared::make() else {
        return;
    };
    let home = shared.superblock.mmp_block;
    for block in [0, shared.geometry.blocks_count, u64::MAX, home.get() + 1] {
        shared.superblock.mmp_block = BlockNumber(block);
        let (claim, waits) = shared.claim(|_| ());
        let error = claim.err().expect("it was refused");
        assert!(matches!(error, Error::Corrupt(_)), "{error}");
        assert!(waits.is_empty());
    }
}

/// Waits until something is so, for the thread of a keeper.
fn wait_until(what: impl Fn() -> bool) {
    let began = Instant::now();
    while !what() {
        assert!(began.elapsed() < Duration::from_secs(60), "it never was so");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_claim_is_kept_until_it_is_released_or_lost() {
    let Some(shared) = Shared::make() else {
        return;
    };
    let options = MountOptions {
        is_device_shared: false,
        ..MountOptions::default()
    };
    let ground = Ground::open(Arc::clone(&shared.device), options).expect("a fresh image");
    let keep = || {
        let (claim, _) = shared.claim(|_| ());
        let mut claim = claim.expect("nobody has it");
        claim.interval = Duration::from_millis(5);
        let device = claim.device();
        let keeper = Keeper::start(claim).expect("a thread");
        keeper.attach(Arc::downgrade(&ground.store));
        (keeper, device)
    };

    let (keeper, device) = keep();
    let first = shared.block().sequence;
    wait_until(|| shared.block().sequence != first);
    keeper.release().expect("nobody else wants it");
    assert_eq!(shared.block().sequence, SEQUENCE_CLEAN);
    device.write_at(0, &[0]).expect("it was not lost");

    let (keeper, device) = keep();
    // The thread may write its sequence over the other's once.
    wait_until(|| {
        shared.set(5);
        ground.store.start(1).is_err()
    });
    let refusal = device.write_at(0, &[0]).expect_err("it is lost");
    assert!(refusal.to_string().contains("\"other\""), "{refusal}");
    keeper.release().expect("there is nothing to release");
    assert_eq!(shared.block().sequence, 5);
}

#[test]
fn the_time_to_pass_is_that_of_linux() {
    let Some(mut shared) = Shared::make() else {
        return;
    };
    for (update, check, seconds) in [
        (0, 0, 11),
        (1, 5, 11),
        (5, 10, 21),
        (59, 0, 119),
        (60, 0, 120),
        (300, 300, 360),
        (5, u16::MAX, 360),
    ] {
        shared.superblock.mmp_update_interval = update;
        let time = time_to_pass(&shared.superblock, &Mmp::clean(check));
        assert_eq!(time.as_secs(), seconds, "{update} {check}");
    }
}
