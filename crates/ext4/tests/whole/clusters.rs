//! Clusters of several blocks (`bigalloc`): contents, space, and what e2fsck says, for clusters of
//! every size and changes that begin and end inside them.

use std::ops::Range;
use std::sync::Arc;

use pext4_block::{Device, RamDevice};
use pext4_fs::{
    AllocateMode, CreateAttributes, Error, InodeNumber, MountOptions, Refusal, SetAttributes,
    SetXattrMode, Volume,
};

use crate::images::{self, Image};

const ROOT: InodeNumber = InodeNumber::ROOT;
const NEW: CreateAttributes = CreateAttributes {
    permissions: 0o755,
    uid: 0,
    gid: 0,
};
/// Sizes of blocks and of clusters, in bytes.
const SIZES: [(u32, u32); 5] = [
    (1024, 2048),
    (1024, 16 << 10),
    (4096, 16 << 10),
    (4096, 64 << 10),
    (1024, 256 << 10),
];

fn image(block: u32, cluster: u32, features: &str) -> Option<Image> {
    let (block, cluster) = (block.to_string(), cluster.to_string());
    let features = format!("bigalloc{features}");
    Image::make(&[
        "-b", &block, "-C", &cluster, "-O", &features, "-N", "512", "-m", "0",
    ])
}

fn create(volume: &Volume, name: &str) -> InodeNumber {
    let made = volume.create(ROOT, name.as_bytes(), &NEW);
    made.expect("room").inode
}

fn cut(volume: &Volume, inode: InodeNumber, size: u64) -> pext4_fs::Result<()> {
    let change = SetAttributes {
        size: Some(size),
        ..SetAttributes::default()
    };
    volume.set_attributes(inode, &change).map(drop)
}

fn set_size(volume: &Volume, inode: InodeNumber, size: u64) {
    cut(volume, inode, size).expect("room");
}

/// A file and what it should contain.
struct File {
    inode: InodeNumber,
    content: Vec<u8>,
}

impl File {
    fn write(&mut self, volume: &Volume, range: Range<usize>, byte: u8) {
        let length = range.len();
        let written = volume.write(self.inode, range.start as u64, &vec![byte; length]);
        assert_eq!(written.expect("room"), length);
        self.content.resize(self.content.len().max(range.end), 0);
        self.content[range].fill(byte);
    }

    fn punch(&mut self, volume: &Volume, range: Range<usize>) {
        let bytes = range.start as u64..range.end as u64;
        let punched = volume.allocate(
            self.inode,
            AllocateMode::PunchHole,
            bytes.start,
            bytes.end - bytes.start,
        );
        punched.expect("it may need a node");
        let end = self.content.len();
        self.content[range.start.min(end)..range.end.min(end)].fill(0);
    }

    fn set_size(&mut self, volume: &Volume, size: usize) {
        set_size(volume, self.inode, size as u64);
        self.content.resize(size, 0);
    }

    fn check(&self, volume: &Volume, what: &str) {
        let mut read = vec![0xEE; self.content.len() + 1];
        let count = volume.read(self.inode, 0, &mut read).expect(what);
        assert_eq!(count, self.content.len(), "{what}");
        assert!(read[..count] == self.content[..], "{what}");
    }
}

/// Writes, holes, truncations and preallocations that begin and end anywhere.
#[test]
fn contents_survive_any_change_inside_clusters() {
    for (block, cluster) in SIZES {
        for seed in 0..4 {
            let features = ["", ",inline_data", ",^has_journal", ",quota"][seed as usize];
            let Some(image) = image(block, cluster, features) else {
                return;
            };
            let what = format!("{block}, {cluster}{features}, seed {seed}");
            let mut random = fastrand::Rng::with_seed(seed);
            let volume = image.open();
            assert!(!volume.is_read_only(), "{what}: {:?}", volume.notes());
            let mut files: Vec<File> = (0..4)
                .map(|number| File {
                    inode: create(&volume, &format!("f{number}")),
                    content: Vec::new(),
                })
                .collect();
            let most = 5 * cluster as usize;
            for step in 0..300 {
                let file = &mut files[random.usize(..4)];
                let start = random.usize(..most);
                let range = start..start + random.usize(1..=most / 2);
                match random.u8(..10) {
                    0..5 => file.write(&volume, range, random.u8(1..)),
                    5..7 => file.punch(&volume, range),
                    7 => file.set_size(&volume, start),
                    8 => {
                        let length = range.len() as u64;
                        let kept = AllocateMode::KeepSize;
                        let done = volume.allocate(file.inode, kept, start as u64, length);
                        done.expect("room");
                    }
                    _ => file.check(&volume, &what),
                }
                if step % 60 == 0 {
                    volume.sync().expect("it commits");
                }
            }
            files.iter().for_each(|file| file.check(&volume, &what));
            volume.close().expect("it closes");
            image.assert_clean();
            let volume = image.open();
            files.iter().for_each(|file| file.check(&volume, &what));
            for number in 0..4 {
                let name = format!("f{number}");
                volume.unlink(ROOT, name.as_bytes()).expect("it is there");
            }
            volume.close().expect("it closes");
            image.assert_clean();
        }
    }
}

/// Directories, long links and attributes take whole clusters, and give them back.
#[test]
fn everything_that_takes_blocks_gives_them_back() {
    for (block, cluster) in SIZES {
        for features in ["", ",ea_inode"] {
            let Some(image) = image(block, cluster, features) else {
                return;
            };
            let what = format!("{block}, {cluster}{features}");
            let volume = image.open();
            let before = volume.statfs().free_blocks;
            let top = volume
                .make_directory(ROOT, b"top", &NEW)
                .expect("room")
                .inode;
            for number in 0..200 {
                let name = format!("a-name-that-is-long-enough-to-fill-blocks-{number:060}");
                let made = volume.create(top, name.as_bytes(), &NEW).expect("room");
                volume.forget(made.inode, 1);
            }
            for number in 0..10_u8 {
                let name = format!("link{number}");
                let made = volume.make_symlink(top, name.as_bytes(), &[b'x'; 300], &NEW);
                let link = made.expect("room").inode;
                volume.forget(link, 1);
                let file = create(&volume, &format!("with-attributes{number}"));
                let value = vec![number / 3; 700];
                let set = volume.set_xattr(file, b"user.some", &value, SetXattrMode::Any);
                set.expect("it fits a block");
                let value = vec![number / 3; 9000];
                let set = volume.set_xattr(file, b"user.long", &value, SetXattrMode::Any);
                assert_eq!(set.is_ok(), !features.is_empty() || block > 9000, "{what}");
                volume.forget(file, 1);
            }
            volume.sync().expect("it commits");
            assert!(volume.statfs().free_blocks < before, "{what}");
            volume.close().expect("it closes");
            image.assert_clean();
            let volume = image.open();
            volume.paths().remove_dir_all("/top").expect("it is there");
            for number in 0..10 {
                let name = format!("with-attributes{number}");
                volume.unlink(ROOT, name.as_bytes()).expect("it is there");
            }
            volume.sync().expect("it commits");
            assert_eq!(volume.statfs().free_blocks, before, "{what}");
            volume.close().expect("it closes");
            image.assert_clean();
        }
    }
}

/// Clusters are used up to the last, and a file that ends inside one grows there though the volume
/// is full.
#[test]
fn a_full_volume_still_has_room_inside_clusters() {
    for (block, cluster) in SIZES {
        let Some(image) = image(block, cluster, "") else {
            return;
        };
        let what = format!("{block}, {cluster}");
        let volume = image.open();
        let before = volume.statfs().free_blocks;
        let small = create(&volume, "small");
        assert_eq!(volume.write(small, 0, b"x").expect("room"), 1);
        // As many extents as an inode holds.
        let pieces = create(&volume, "pieces");
        for piece in 0..4_u64 {
            let bytes = vec![b'p'; 2 * cluster as usize];
            let offset = piece * 10 * u64::from(cluster);
            assert_eq!(
                volume.write(pieces, offset, &bytes).expect("room"),
                bytes.len()
            );
        }
        let large = create(&volume, "large");
        let mut size = 0;
        loop {
            match volume.write(large, size, &[7; 1 << 20]) {
                Ok(count) if count > 0 => size += count as u64,
                Ok(_) => break,
                Err(error) => {
                    assert!(error.is(Refusal::NoSpace), "{what}: {error}");
                    break;
                }
            }
        }
        let per_cluster = u64::from(cluster / block);
        let left = volume.statfs().free_blocks;
        assert!(left <= per_cluster, "{what}: {left}");
        let rest = vec![b'y'; cluster as usize - 1];
        let count = volume.write(small, 1, &rest).expect("its cluster has room");
        assert_eq!(count, rest.len(), "{what}");
        let refused = volume.write(small, u64::from(cluster), b"z");
        assert!(
            refused.is_err_and(|error| error.is(Refusal::NoSpace)),
            "{what}"
        );
        // One more needs a node, and that a cluster.
        let (offset, length) = (u64::from(block), u64::from(block));
        let hole = volume.allocate(pieces, AllocateMode::PunchHole, offset, length);
        if volume.statfs().free_blocks == 0 {
            assert!(
                hole.is_err_and(|error| error.is(Refusal::NoSpace)),
                "{what}"
            );
        }
        for name in [&b"small"[..], b"large", b"pieces"] {
            volume.unlink(ROOT, name).expect("it is there");
        }
        for inode in [small, large, pieces] {
            volume.forget(inode, 1);
        }
        volume.sync().expect("it commits");
        assert_eq!(volume.statfs().free_blocks, before, "{what}");
        volume.close().expect("it closes");
        image.assert_clean();
    }
}

/// Trimming never reaches into a cluster that is in use.
#[test]
fn a_trim_discards_whole_clusters_that_are_free() {
    let Some(image) = image(1024, 16 << 10, "") else {
        return;
    };
    let (device, volume) = image.load();
    let file = create(&volume, "file");
    assert_eq!(volume.write(file, 0, &[7; 50_000]).expect("room"), 50_000);
    let free = volume.statfs().free_blocks;
    let all = volume.trim(0, u64::MAX, 0).expect("memory can discard");
    assert!(
        all > 0 && all <= free * 1024 && all.is_multiple_of(16 << 10),
        "{all} of {free}"
    );
    // Begins and ends inside clusters, far from all that is in use.
    let some = volume.trim((40 << 20) + 1024, 1 << 20, 0);
    assert_eq!(some.expect("memory can discard"), (1 << 20) - (16 << 10));
    let mut read = vec![0; 50_000];
    assert_eq!(
        volume.read(file, 0, &mut read).expect("it is there"),
        50_000
    );
    assert!(read.iter().all(|&byte| byte == 7));
    volume.close().expect("it closes");
    let mut bytes = vec![0; 64 << 20];
    device.read_at(0, &mut bytes).expect("memory");
    std::fs::write(&image.path, &bytes).expect("room");
    image.assert_clean();
}

/// With `discard`, the device forgets all of a cluster once that is free.
#[test]
fn freed_clusters_are_discarded_whole() {
    let Some(image) = image(1024, 16 << 10, "") else {
        return;
    };
    let device = Arc::new(RamDevice::load(&image.path).expect("the image"));
    let options = MountOptions {
        discard: Some(true),
        ..MountOptions::default()
    };
    let volume = Volume::open(Arc::<RamDevice>::clone(&device), options).expect("a mount");
    let marks = || {
        let mut bytes = vec![0; 64 << 20];
        device.read_at(0, &mut bytes).expect("memory");
        bytes
            .chunks(1024)
            .filter(|block| block.iter().all(|&byte| byte == 0xA7))
            .count()
    };
    let file = create(&volume, "file");
    let written = volume.write(file, 0, &[0xA7; 48 << 10]);
    assert_eq!(written.expect("room"), 48 << 10);
    volume.sync().expect("it commits");
    assert_eq!(marks(), 48);
    volume.forget(file, 1);
    volume.unlink(ROOT, b"file").expect("it is there");
    volume.close().expect("it closes");
    assert_eq!(marks(), 0);
}

/// A block of a directory that is gone does not come back from the journal over the data of the
/// file that has got its cluster.
#[test]
fn a_replay_does_not_bring_back_blocks_of_clusters_that_are_others_now() {
    for (block, cluster) in [(1024, 16 << 10), (4096, 64 << 10)] {
        let Some(image) = self::image(block, cluster, "") else {
            return;
        };
        let (device, volume) = image.load();
        let top = volume
            .make_directory(ROOT, b"top", &NEW)
            .expect("room")
            .inode;
        for number in 0..400 {
            let name = format!("a-name-that-is-long-enough-to-fill-blocks-{number:060}");
            let made = volume.create(top, name.as_bytes(), &NEW).expect("room");
            volume.forget(made.inode, 1);
        }
        volume.forget(top, 1);
        volume.sync().expect("it commits");
        volume.paths().remove_dir_all("/top").expect("it is there");
        volume.sync().expect("it commits");
        let file = create(&volume, "all");
        let mut size = 0;
        while let Ok(count) = volume.write(file, size, &[0xA7; 1 << 20]) {
            size += count as u64;
            if count == 0 {
                break;
            }
        }
        volume.sync().expect("it commits");
        let mut bytes = vec![0; 64 << 20];
        device.read_at(0, &mut bytes).expect("memory");
        let copy = Arc::new(RamDevice::new(64 << 20));
        copy.write_at(0, &bytes).expect("memory");
        let after = Volume::open(copy, MountOptions::default()).expect("a replay");
        let mut read = vec![0; usize::try_from(size).expect("64 MiB")];
        assert_eq!(
            after.read(file, 0, &mut read).expect("it is there"),
            read.len()
        );
        assert!(read.iter().all(|&byte| byte == 0xA7), "{block}, {cluster}");
    }
}

/// Images of which no writer makes sense are only read.
#[test]
fn without_extents_or_whole_clusters_nothing_is_written() {
    for request in ["feature -extent", "set_super_value blocks_count 16383"] {
        let Some(image) = image(4096, 64 << 10, ",^metadata_csum,^has_journal") else {
            return;
        };
        image.debugfs_write(request);
        let volume = image.open();
        assert!(volume.is_read_only(), "{request}");
        let notes = volume.notes().join("; ");
        assert!(notes.contains("bigalloc"), "{request}: {notes}");
    }
}

/// A file that maps the rest of a cluster with structures of the file system, or its blocks to
/// other places in their clusters: the file suffers, and nothing else does.
#[test]
fn a_file_with_blocks_that_no_cluster_of_its_own_can_hold_is_refused() {
    let told: [(&str, &[&str]); 4] = [
        // Extents of four blocks: beside the block bitmap (34), and at an odd place.
        (
            "a bitmap's cluster",
            &["block[3] 8", "block[4] 4", "block[5] 40"],
        ),
        (
            "another place",
            &["block[3] 8", "block[4] 4", "block[5] 16001"],
        ),
        // Pointers: to the inode table, and beside the bitmap.
        (
            "an inode table by a pointer",
            &[
                "flags 0",
                "block[8] 66",
                "block[0] 0",
                "block[1] 0",
                "block[2] 0",
                "block[3] 0",
                "block[4] 0",
                "block[5] 0",
            ],
        ),
        (
            "a bitmap's cluster by a pointer",
            &[
                "flags 0",
                "block[8] 40",
                "block[0] 0",
                "block[1] 0",
                "block[2] 0",
                "block[3] 0",
                "block[4] 0",
                "block[5] 0",
            ],
        ),
    ];
    for (what, words) in told {
        for checksums in ["metadata_csum", "^metadata_csum"] {
            let requests: Vec<_> = words
                .iter()
                .map(|word| format!("sif file {word}"))
                .collect();
            let requests: Vec<_> = requests.iter().map(String::as_str).collect();
            let features = format!("bigalloc,{checksums}");
            let arguments = ["-b", "1024", "-C", "16384", "-O", &features, "-N", "512"];
            let Some(image) = Image::with_file(&arguments, &[7; 40 << 10], &requests) else {
                return;
            };
            let volume = image.open();
            let file = images::inode(&volume, "/file");
            let is_refused = |result: pext4_fs::Result<()>, call: &str| {
                let error = result.expect_err(call);
                assert!(
                    matches!(error, Error::Corrupt(_)),
                    "{what}, {call}: {error}"
                );
                assert!(!volume.is_read_only(), "{what}, {call}");
            };
            let read = volume.read(file, 8 << 10, &mut [0; 100]);
            is_refused(read.map(drop), "read");
            let written = volume.write(file, 8 << 10, &[1; 100]);
            is_refused(written.map(drop), "write");
            if words[0].starts_with("block") {
                let written = volume.write(file, 0, &[1; 100]);
                is_refused(written.map(drop), "write into the hole of the cluster");
            }
            is_refused(cut(&volume, file, 0), "cut");
            is_refused(cut(&volume, file, 9 << 10), "cut inside the cluster");
            let _ = volume.unlink(ROOT, b"file");
            volume.forget(file, 1);
            create(&volume, "other");
            volume.sync().expect("the journal goes on");
            assert!(!volume.is_read_only(), "{what}");
        }
    }
}

/// A range that begins in the same cluster as blocks of a damaged leaf is not unmapped, and the
/// volume goes on.
#[test]
fn damage_beside_a_range_stops_nothing_else() {
    let Some(image) = image(1024, 16 << 10, "") else {
        return;
    };
    let volume = image.open();
    let file = create(&volume, "file");
    for piece in 0..300 {
        let written = volume.write(file, piece * 2048, &[7; 1024]);
        assert_eq!(written.expect("room"), 1024);
    }
    volume.close().expect("it closes");
    let told = image.debugfs("stat file");
    let leaf = told.split("(ETB0):").nth(1).expect("it has leaves");
    let leaf = leaf.split(|byte: char| !byte.is_ascii_digit()).next();
    let leaf: usize = leaf.and_then(|leaf| leaf.parse().ok()).expect("a block");
    let mut sound = Vec::new();
    image.change(|bytes| {
        let node = &mut bytes[leaf * 1024..][..100];
        sound = node.to_vec();
        node.fill(9);
    });
    let volume = image.open();
    let mut refused = 0;
    for first in (0..600).rev() {
        let mode = AllocateMode::PunchHole;
        let length = (600 - first) * 1024;
        if let Err(error) = volume.allocate(file, mode, first * 1024, length) {
            assert!(matches!(error, Error::Corrupt(_)), "{first}: {error}");
            refused += 1;
        }
        assert!(!volume.is_read_only(), "{first}");
    }
    assert!(refused > 0, "the first leaf cannot be read");
    create(&volume, "other");
    volume.sync().expect("the journal goes on");
    volume.close().expect("it closes");
    // Nothing that the leaf maps is free, once it can be read again.
    image.change(|bytes| bytes[leaf * 1024..][..100].copy_from_slice(&sound));
    image.debugfs_write("set_super_value state 1");
    image.debugfs_write("set_super_value error_count 0");
    image.assert_clean();
}

/// Extents of one cluster of the file in two clusters of the device: neither is freed while a part
/// of it is mapped.
#[test]
fn a_cluster_in_two_places_is_refused() {
    let extents = [
        // Two blocks in cluster 16000, four behind them in cluster 16016.
        "block[0] 0x0002f30a",
        "block[3] 0",
        "block[4] 2",
        "block[5] 16000",
        "block[6] 2",
        "block[7] 4",
        "block[8] 16018",
    ];
    let requests = extents.map(|word| format!("sif file {word}"));
    let requests = requests.each_ref().map(String::as_str);
    let features = "bigalloc,^metadata_csum";
    let arguments = ["-b", "1024", "-C", "16384", "-O", features, "-N", "512"];
    let Some(image) = Image::with_file(&arguments, &[7; 6 << 10], &requests) else {
        return;
    };
    let volume = image.open();
    let file = images::inode(&volume, "/file");
    let punch = |start: u64, length: u64| {
        volume.allocate(file, AllocateMode::PunchHole, start << 10, length << 10)
    };
    for (start, length) in [(4, 2), (0, 1), (1, 1), (1, 3), (3, 1)] {
        let error = punch(start, length).expect_err("what stays is in two clusters");
        assert!(
            matches!(error, Error::Corrupt(_)),
            "{start}, {length}: {error}"
        );
    }
    assert!(!volume.is_read_only());
}

/// Who fills a hole in a cluster that stays can know that this waits for a commit.
#[test]
fn a_write_says_that_it_waits_for_a_cut_inside_a_cluster() {
    let Some(image) = image(1024, 16 << 10, "") else {
        return;
    };
    let volume = image.open();
    let file = create(&volume, "file");
    volume.write(file, 0, &[7; 16 << 10]).expect("room");
    volume.sync().expect("it commits");
    assert!(!volume.write_waits(file, 8 << 10));
    set_size(&volume, file, 5 << 10);
    assert!(volume.write_waits(file, 8 << 10), "the cut is not durable");
    volume.sync().expect("it commits");
    assert!(!volume.write_waits(file, 8 << 10));
    set_size(&volume, file, 0);
    assert!(!volume.write_waits(file, 8 << 10), "no cluster stays");
}

/// Linux maps files by extents there.
#[test]
fn maps_keep_their_format() {
    let Some(image) = image(1024, 16 << 10, "") else {
        return;
    };
    let volume = image.open();
    let file = create(&volume, "file");
    volume.write(file, 0, &[7; 3000]).expect("room");
    let change = SetAttributes {
        flags: Some(0),
        ..SetAttributes::default()
    };
    let refused = volume
        .set_attributes(file, &change)
        .expect_err("no pointers there");
    assert!(refused.is(Refusal::NotSupported), "{refused}");
}
