//! Corrupt images: the result is an error or a plan, never a panic or a hang.

use std::sync::Arc;

use fastrand::Rng;
use pext4_block::fault::Operation;
use pext4_block::{Device, FaultDevice, RamDevice};
use pext4_image::Error;
use pext4_image::resize::{Plan, Target, Way};

use super::rig::{MIB, assert_clean, field, scattered_image, scratch, source, tools};

fn seeds() -> std::ops::Range<u64> {
    match std::env::var("PEXT4_SEED").map(|text| text.parse::<u64>()) {
        Ok(Ok(seed)) => seed..seed + 1,
        _ => 1..120,
    }
}

/// Overwrites a few words of metadata with plausible values.
fn spoil(device: &RamDevice, random: &mut Rng) {
    const VALUES: [u32; 7] = [0, 1, 0xFFFF_FFFF, 0x8000_0000, 0xF30A, 7, 12000];
    for _ in 0..1 + random.u64(..4) {
        let offset = match random.u64(..4) {
            0 => 1024 + 4 * random.u64(..100),
            1 => 2048 + 4 * random.u64(..512),
            _ => 4 * random.u64(..MIB / 2),
        };
        let value = match random.u64(..3) {
            0 => u32::try_from(random.u64(..14000)).expect("small"),
            _ => VALUES[usize::try_from(random.u64(..7)).expect("small")],
        };
        device
            .write_at(offset, &value.to_le_bytes())
            .expect("it lies within");
    }
}

#[test]
fn corrupt_images_give_errors_or_plans() {
    if !tools() {
        return;
    }
    let folder = scratch();
    let tree = source(folder.path(), 64 << 10);
    let options = "-t ext4 -b 1024 -g 1024 -N 640 -O ^metadata_csum,^64bit";
    let path = scattered_image(folder.path(), options, 14 * MIB, &tree);
    std::fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .and_then(|file| file.set_len(20 * MIB))
        .expect("a longer file");
    let base = RamDevice::load(&path).expect("an image");
    let (mut plans, mut errors) = (0, 0);
    for seed in seeds() {
        let mut random = Rng::with_seed(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let spoilt = base.fork();
        spoil(&spoilt, &mut random);
        for target in [Target::Smallest, Target::Bytes(11 * MIB), Target::Largest] {
            let device = spoilt.fork();
            eprintln!("PEXT4_SEED={seed} {target:?}");
            match Plan::make(&device, target) {
                Ok(mut plan) => {
                    plans += 1;
                    // The plan may be wrong, but it stays inside the device.
                    let _ = plan.run(&device, &device, Way::InPlace, u64::MAX);
                }
                Err(_) => errors += 1,
            }
        }
    }
    assert!(std::env::var("PEXT4_SEED").is_ok() || (plans > 0 && errors > 0));
}

#[test]
fn invalid_or_impossible_requests_are_refused_by_name() {
    if !tools() {
        return;
    }
    let folder = scratch();
    let tree = source(folder.path(), 64 << 10);
    let refuse = |options: &str, spoil: &[(u64, &[u8])], target: Target, word: &str| {
        let scratch = scratch();
        let path = super::rig::image(scratch.path(), options, 20 * MIB, &tree);
        let device = RamDevice::load(&path).expect("an image");
        for (offset, bytes) in spoil {
            device.write_at(*offset, bytes).expect("it lies within");
        }
        let told = match Plan::make(&device, target) {
            Ok(_) => panic!("{options}, {target:?}: no refusal"),
            Err(error) => error.to_string(),
        };
        assert!(told.contains(word), "{options}, {target:?}: {told}");
    };
    let more = Target::More(20 * MIB);
    let plain = "-t ext4 -b 1024 -O ^metadata_csum,^64bit";
    refuse("-t ext4 -b 1024 -O bigalloc", &[], more, "bigalloc");
    refuse(plain, &[(1024 + 0x3A, &[3])], more, "errors are noted");
    refuse(
        "-t ext2 -b 1024",
        &[(1024 + 0x3A, &[0])],
        more,
        "not unmounted cleanly",
    );
    refuse(plain, &[], Target::Bytes(1 << 43), "64bit");
    refuse(plain, &[], Target::Bytes(MIB), "are the least");
    refuse(plain, &[], Target::Less(30 * MIB), "it has only");
    refuse(
        plain,
        &[(1024 + 0xE8, &[12])],
        Target::Smallest,
        "pext4 edit IMAGE -f /dev/null",
    );
    refuse(plain, &[(1024 + 0x38, &[0])], more, "magic");
    refuse(
        plain,
        &[(1024 + 0x5D, &[0x80])],
        more,
        "features: FEATURE_C15",
    );
    let mmp = "-t ext4 -b 1024 -O mmp";
    refuse(mmp, &[], Target::Bytes(1 << 54), "format can count");
}

/// The machine that has it mounted would see its journal replayed under it.
#[test]
fn an_image_mounted_elsewhere_is_not_written() {
    if !tools() {
        return;
    }
    let folder = scratch();
    let tree = source(folder.path(), 64 << 10);
    let options = "-t ext4 -b 1024 -O mmp,^metadata_csum";
    let path = super::rig::image(folder.path(), options, 20 * MIB, &tree);
    let device = RamDevice::load(&path).expect("an image");
    let word = |offset| {
        let mut bytes = [0; 4];
        device.read_at(offset, &mut bytes).expect("it lies within");
        u32::from_le_bytes(bytes)
    };
    let incompat = word(1024 + 0x60) | 4;
    let mmp = u64::from(word(1024 + 0x168)) * 1024;
    for (offset, value) in [(1024 + 0x60, incompat), (mmp + 4, 1)] {
        device
            .write_at(offset, &value.to_le_bytes())
            .expect("it lies within");
    }
    // The log begins at its first block, which is empty: replaying it would empty the log.
    let mut image = vec![0; usize::try_from(20 * MIB).expect("small")];
    device.read_at(0, &mut image).expect("it lies within");
    let journal = [0xC0, 0x3B, 0x39, 0x98, 0, 0, 0, 4];
    let block = image
        .chunks(1024)
        .position(|block| block.starts_with(&journal));
    let start = block.expect("a journal") as u64 * 1024 + 0x1C;
    device
        .write_at(start, &1u32.to_be_bytes())
        .expect("it lies within");
    let told = Plan::make(&device, Target::More(20 * MIB)).expect_err("a refusal");
    assert!(told.to_string().contains("in use"), "{told}");
    let begins = u32::from_le_bytes(1u32.to_be_bytes());
    assert_eq!(word(start), begins, "its journal was replayed");
}

/// A device that fails at any write of a transaction leaves the old or the new file system.
#[test]
fn a_failing_device_is_an_error() {
    if !tools() {
        return;
    }
    let folder = scratch();
    let tree = source(folder.path(), 64 << 10);
    let path = super::rig::image(folder.path(), "-t ext4 -b 1024 -N 256", 6 * MIB, &tree);
    std::fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .and_then(|file| file.set_len(9 * MIB))
        .expect("a longer file");
    let base = RamDevice::load(&path).expect("an image");
    let mut failed = 0;
    for nth in [1, 2, 5, 9, 17, 33] {
        let below = Arc::new(base.fork());
        let device = FaultDevice::new(Arc::clone(&below) as Arc<dyn Device>);
        let mut plan = Plan::make(&device, Target::Largest).expect("a plan");
        device.fail_from(Operation::Write, nth);
        match plan.run(&device, &device, Way::Journal, 6 * MIB) {
            Ok(()) => {}
            Err(Error::Io(_)) => failed += 1,
            Err(other) => panic!("{other}"),
        }
        let path = folder.path().join("failed");
        below.save(&path).expect("a file");
        let replay = std::process::Command::new("e2fsck")
            .args(["-fy", "-E", "journal_only"])
            .arg(&path)
            .output()
            .expect("it was found before");
        assert!(matches!(replay.status.code(), Some(0 | 1)));
        assert_clean(&path, &format!("write {nth} failed"));
    }
    assert!(failed > 0);
}

/// An interrupted resize in place leaves a damaged image that is marked so: mounts notice it, and
/// e2fsck does not skip it.
#[test]
fn an_interrupted_resize_in_place_is_marked() {
    if !tools() {
        return;
    }
    let folder = scratch();
    let tree = source(folder.path(), 1 << 20);
    let path = scattered_image(folder.path(), "-t ext4 -b 1024", 60 * MIB, &tree);
    let base = RamDevice::load(&path).expect("an image");
    let states = [2, 9].map(|nth| {
        let below = Arc::new(base.fork());
        let device = FaultDevice::new(Arc::clone(&below) as Arc<dyn Device>);
        let mut plan = Plan::make(&device, Target::Bytes(30 * MIB)).expect("a plan");
        device.fail_from(Operation::Write, nth);
        let told = plan.run(&device, &device, Way::InPlace, 60 * MIB);
        assert!(matches!(told, Err(Error::Io(_))), "{told:?}");
        let path = folder.path().join("failed");
        below.save(&path).expect("a file");
        field(&path, "Filesystem state:")
    });
    for state in states {
        assert!(state.contains("with errors"), "{state}");
    }
}
