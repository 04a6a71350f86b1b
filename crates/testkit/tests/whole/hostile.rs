//! Hostile images: any content leads to an error or a valid answer, never to a panic, a hang, or an
//! unrequested write.

use std::sync::Arc;
use std::time::Duration;

use pext4_block::{Device, RamDevice, RecordDevice};
use pext4_testkit::Random;
use pext4_testkit::effort::{effort, failures, seeds, within};
use pext4_testkit::fuzz;
use pext4_testkit::mutate::{Specimen, walk_corrupt, write_corrupt};
use pext4_testkit::oracle::format::Features;

/// Longest time for one image.
const LIMIT: Duration = Duration::from_secs(60);

fn survives(device: RamDevice, told: &str) {
    let original = Arc::new(device);
    let (one, two) = (Arc::new(original.fork()), Arc::new(original.fork()));
    let work = std::panic::AssertUnwindSafe(|| {
        within(LIMIT, told, move || {
            let log = Arc::new(RecordDevice::new(one));
            walk_corrupt(Arc::<RecordDevice>::clone(&log));
            assert_eq!(log.mark(), 0, "a read-only look wrote");
            write_corrupt(two);
        });
    });
    if let Err(panic) = std::panic::catch_unwind(work) {
        let path = failures().join("hostile.img");
        let saved = original.save(&path);
        eprintln!("spoilt by {told}; kept ({saved:?}) in {}", path.display());
        std::panic::resume_unwind(panic);
    }
}

fn specimens() -> Vec<(Features, Specimen)> {
    let all = [
        Features::NoChecksums,
        Features::Upstream,
        Features::Debian12,
        Features::InlineNoChecksums,
        Features::Clusters,
        Features::Ext3,
    ];
    all.into_iter()
        .map(|features| (features, Specimen::with_journal(features).expect("made")))
        .collect()
}

#[test]
fn every_field_of_the_superblock_and_the_descriptors() {
    for (features, specimen) in specimens() {
        for what in ["superblock", "descriptors"] {
            let mut random = Random::new(1);
            for index in 0.. {
                let Some((device, told)) = specimen.nth(what, index, &mut random) else {
                    break;
                };
                survives(device, &format!("{features:?}: {told}"));
            }
        }
    }
}

#[test]
fn fields_of_every_structure() {
    let whats = [
        "Inode table",
        "Directory /many",
        "Directory /dir",
        "Extent node",
        "Attribute block",
        "Journal",
        "bitmap",
    ];
    let [(features, specimen), .., (maps_features, maps)] = &specimens()[..] else {
        panic!("there are several");
    };
    let mut random = Random::new(2);
    let each = whats.map(|what| (what, features, specimen));
    let pointers = [("Pointer block", maps_features, maps)];
    for (what, features, specimen) in each.into_iter().chain(pointers) {
        // A prime step through all fields of the kind, with a start that depends on the effort.
        let step = (23 / effort()).max(1);
        for index in (0..).map(|index| index * step) {
            let Some((device, told)) = specimen.nth(what, index, &mut random) else {
                break;
            };
            survives(device, &format!("{features:?}: {told}"));
        }
    }
}

#[test]
fn several_fields_at_once() {
    for (features, specimen) in specimens() {
        for seed in seeds(150) {
            let (device, told) = specimen.mutate(&mut Random::new(seed), 5);
            survives(device, &format!("{features:?}, seed {seed}: {told}"));
        }
    }
}

#[test]
fn images_that_end_too_early() {
    for (features, specimen) in specimens() {
        let size = specimen.device.size();
        for length in [
            0,
            1,
            1023,
            1024,
            1500,
            2048,
            3000,
            65_536,
            size / 2,
            size - 1024,
            size - 1,
        ] {
            let device = RamDevice::new(length);
            let mut bytes = vec![0; length as usize];
            specimen.device.read_at(0, &mut bytes).expect("within");
            device.write_at(0, &bytes).expect("within");
            survives(device, &format!("{features:?} cut to {length} bytes"));
        }
    }
}

/// The fuzz targets on noise, on real metadata, and on real metadata with a changed byte.
#[test]
fn what_the_fuzzers_do() {
    let (_, specimen) = specimens().swap_remove(1);
    for seed in seeds(300) {
        let mut random = Random::new(seed);
        let length = random.index(3000);
        let mut bytes: Vec<u8> = (0..length).map(|_| random.word() as u8).collect();
        fuzz::recovery(&bytes);
        if random.chance(1, 5) {
            fuzz::image(&bytes);
            fuzz::check(&bytes);
        }
        fuzz::ondisk(&bytes);
        let spot = random.pick(&specimen.spots);
        bytes.resize(spot.length as usize, 0);
        specimen
            .device
            .read_at(spot.offset, &mut bytes)
            .expect("within");
        fuzz::ondisk(&bytes);
        for _ in 0..4 {
            let at = random.index(bytes.len());
            bytes[at] = random.word() as u8;
            fuzz::ondisk(&bytes);
        }
        fuzz::recovery(&journal(&specimen, &mut random));
    }
}

/// The start of a journal that needs replay, with some bytes changed, and checksums too where
/// nothing verifies them.
fn journal(specimen: &Specimen, random: &mut Random) -> Vec<u8> {
    let spots = specimen.spots.iter().filter(|spot| spot.what == "Journal");
    let mut bytes = Vec::new();
    for spot in spots {
        let mut block = vec![0; spot.length as usize];
        specimen
            .device
            .read_at(spot.offset, &mut block)
            .expect("within");
        bytes.extend(block);
    }
    // The journal's length must match the target's shorter log.
    bytes[16..20].copy_from_slice(&64_u32.to_be_bytes());
    for _ in 0..random.below(4) {
        let at = random.index(bytes.len().min(6000));
        bytes[at] ^= 1 << random.below(8);
    }
    bytes
}

#[test]
fn images_of_noise() {
    for seed in seeds(20) {
        let mut random = Random::new(seed);
        let device = RamDevice::new(1 << 20);
        let bytes: Vec<u8> = (0..1 << 17)
            .flat_map(|_| random.word().to_le_bytes())
            .collect();
        device.write_at(0, &bytes).expect("within");
        let magic_and_version = [0x53, 0xef, 1, 0, 1, 0];
        device
            .write_at(1024 + 0x38, &magic_and_version)
            .expect("within");
        survives(device, &format!("noise of seed {seed}"));
    }
}
