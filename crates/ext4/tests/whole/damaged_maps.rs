//! A file whose map is damaged in one of its nodes: the file suffers, and nothing else does.

use pext4_fs::{
    AllocateMode, CreateAttributes, Error, InodeNumber, Refusal, SetAttributes, Volume,
};
use pext4_ondisk::inode::InodeFlags;

use crate::images::Image;

const BLOCK: u64 = 1024;
/// More than fit into two leaves, or below two pointer blocks.
const PIECES: u64 = 400;

/// An image with the file `/file`, in which every other block is a hole, and the inode of that
/// file.
fn with_file(arguments: &[&str]) -> Option<(Image, InodeNumber)> {
    let image = Image::make(arguments)?;
    let volume = image.open();
    let made = volume.create(InodeNumber::ROOT, b"file", &CreateAttributes::default());
    let file = made.expect("a file").inode;
    for piece in 0..PIECES {
        let written = volume.write(file, piece * 2 * BLOCK, &[7; BLOCK as usize]);
        assert_eq!(written.expect("written"), BLOCK as usize);
    }
    volume.close().expect("it closes");
    Some((image, file))
}

/// The number of the block that debugfs shows with this label in the map of `/file`.
fn node(image: &Image, label: &str) -> usize {
    let told = image.debugfs("stat file");
    let number = told.split(label).nth(1).expect("a node of its own");
    let digits = number.bytes().take_while(u8::is_ascii_digit).count();
    number[..digits].parse().expect("a number")
}

fn cut(volume: &Volume, file: InodeNumber, size: u64) -> pext4_fs::Result<()> {
    let change = SetAttributes {
        size: Some(size),
        ..SetAttributes::default()
    };
    volume.set_attributes(file, &change).map(drop)
}

#[test]
fn damage_in_one_node_does_not_stop_the_volume() {
    type Act = fn(&Volume, InodeNumber) -> pext4_fs::Result<()>;
    let acts: [(&str, bool, Act); 4] = [
        ("unlink", true, |volume, _| {
            volume.unlink(InodeNumber::ROOT, b"file")
        }),
        ("cut to nothing", false, |volume, file| cut(volume, file, 0)),
        ("cut", false, |volume, file| cut(volume, file, 4 * BLOCK)),
        ("punch", false, |volume, file| {
            volume.allocate(file, AllocateMode::PunchHole, 0, 2 * PIECES * BLOCK)
        }),
    ];
    let formats: [(&[&str], &str, &[u8]); 4] = [
        // The checksum of the first leaf is wrong then.
        (&["-b", "1024", "-O", "metadata_csum"], "(ETB0):", &[9; 100]),
        (
            &["-b", "1024", "-O", "^metadata_csum"],
            "(ETB0):",
            &[9; 100],
        ),
        // Pointers that leave the image: to data, and to a pointer block beside others.
        (
            &["-b", "1024", "-O", "^extent,^64bit"],
            "(IND):",
            &[0xF0; 8],
        ),
        (
            &["-b", "1024", "-O", "^extent,^64bit"],
            "(DIND):",
            &[0xF0; 4],
        ),
    ];
    for (arguments, label, damage) in formats {
        for (name, works, act) in acts {
            let Some((image, file)) = with_file(arguments) else {
                return;
            };
            let at = node(&image, label) * BLOCK as usize;
            image.change(|bytes| bytes[at..at + damage.len()].copy_from_slice(damage));
            let volume = image.open();
            let new = CreateAttributes::default();
            let _ = volume
                .create(InodeNumber::ROOT, b"before", &new)
                .expect("a file");
            let done = act(&volume, file);
            let case = format!("{label} {name}: {done:?}");
            assert_eq!(done.is_ok(), works, "{case}");
            assert!(
                done.is_ok() || matches!(done, Err(Error::Corrupt(_))),
                "{case}"
            );
            assert!(volume.failure().is_none(), "{case}");
            let _ = volume
                .create(InodeNumber::ROOT, b"after", &new)
                .expect(&case);
            volume.close().expect(&case);
            let volume = image.open();
            for path in ["/before", "/after"] {
                volume.paths().attributes(path).expect(&case);
            }
        }
    }
}

/// A map of three levels in which all pointers of a level lead to the same block: it takes four
/// blocks and maps sixteen million.
#[test]
fn a_map_that_repeats_its_blocks_is_not_walked_to_its_end() {
    const PIECES: u64 = 4;
    let features = ["-b", "1024", "-O", "^extent,^64bit,^metadata_csum"];
    let Some(image) = Image::make(&features) else {
        return;
    };
    let volume = image.open();
    let create = |name: &[u8]| {
        let made = volume.create(InodeNumber::ROOT, name, &CreateAttributes::default());
        made.expect("a file").inode
    };
    let (file, nodes) = (create(b"file"), create(b"nodes"));
    let fill = |piece: u64, word: u32| {
        let bytes = word.to_le_bytes().repeat(BLOCK as usize / 4);
        let written = volume.write(nodes, piece * BLOCK, &bytes);
        assert_eq!(written.expect("room"), bytes.len());
    };
    (0..PIECES).for_each(|piece| fill(piece, 7));
    let ranges = volume.extents(nodes, 0, usize::MAX).expect("a sound map");
    let places: Vec<u64> = ranges
        .iter()
        .flat_map(|range| (range.physical..range.physical + range.length).step_by(BLOCK as usize))
        .map(|byte| byte / BLOCK)
        .collect();
    for (piece, next) in (0..).zip(&places[1..]) {
        fill(piece, u32::try_from(*next).expect("a small image"));
    }
    volume.close().expect("it closes");
    image.debugfs_write(&format!("set_inode_field file block[TIND] {}", places[0]));
    image.debugfs_write(&format!("set_inode_field file block[DIND] {}", places[1]));
    image.debugfs_write(&format!("set_inode_field file block[IND] {}", places[2]));
    image.debugfs_write(&format!("set_inode_field file size {}", 1u64 << 34));

    let volume = image.open();
    let start = 12 * BLOCK;
    let tries = [
        volume.seek_hole(file, start).map(drop),
        volume.extents(file, start, usize::MAX).map(drop),
        // The first pointer block again is enough: the file system may claim to be large, too.
        volume
            .extents(file, start, 2 * BLOCK as usize / 4)
            .map(drop),
    ];
    for tried in tries {
        let error = tried.expect_err("no sound file has so many blocks");
        assert!(matches!(error, Error::Corrupt(_)), "{error}");
    }
    assert!(volume.failure().is_none());
}

/// A directory of three blocks, of which one is mapped sixty thousand times: neither a search nor a
/// listing reads it so often.
#[test]
fn a_directory_that_repeats_its_blocks_is_refused() {
    let features = [
        "-b",
        "1024",
        "-O",
        "^extent,^64bit,^metadata_csum,^dir_index",
    ];
    let Some(image) = Image::make(&features) else {
        return;
    };
    let volume = image.open();
    let new = CreateAttributes::default();
    let made = volume.make_directory(InodeNumber::ROOT, b"directory", &new);
    let directory = made.expect("room").inode;
    let _ = volume.create(directory, b"name", &new).expect("room");
    let made = volume.create(InodeNumber::ROOT, b"nodes", &new);
    let nodes = made.expect("room").inode;
    let fill = |piece: u64, word: u64| {
        let word = u32::try_from(word).expect("a small image");
        let bytes = word.to_le_bytes().repeat(BLOCK as usize / 4);
        let written = volume.write(nodes, piece * BLOCK, &bytes);
        assert_eq!(written.expect("room"), bytes.len());
    };
    (0..2).for_each(|piece| fill(piece, 1));
    let place = |inode, piece| {
        let ranges = volume.extents(inode, piece * BLOCK, 1);
        let ranges = ranges.expect("a sound map");
        ranges[0].physical / BLOCK
    };
    let leaf = place(directory, 0);
    let (first, second) = (place(nodes, 0), place(nodes, 1));
    fill(0, leaf);
    fill(1, first);
    volume.close().expect("it closes");
    for slot in 1..12 {
        image.debugfs_write(&format!("set_inode_field directory block[{slot}] {leaf}"));
    }
    image.debugfs_write(&format!("set_inode_field directory block[IND] {first}"));
    image.debugfs_write(&format!("set_inode_field directory block[DIND] {second}"));
    image.debugfs_write(&format!(
        "set_inode_field directory size {}",
        60_000 * BLOCK
    ));

    let volume = image.open();
    let searched = volume.lookup(directory, b"absent").map(drop);
    let listed = volume.read_directory(directory, 0, &mut |_| true);
    for tried in [searched, listed] {
        let error = tried.expect_err("no sound directory has a block twice");
        assert!(matches!(error, Error::Corrupt(_)), "{error}");
    }
    assert!(volume.failure().is_none());
}

/// A damaged node below which most blocks of a directory are, which may be millions: they are
/// passed at once, whenever the directory is loaded.
#[test]
fn what_is_below_a_damaged_node_is_passed_at_once() {
    let Some((image, file)) = with_file(&["-b", "1024", "-O", "^metadata_csum"]) else {
        return;
    };
    let told = image.debugfs("stat file");
    let last = told.rsplit("(ETB1):").next().expect("it has leaves");
    let digits = last.bytes().take_while(u8::is_ascii_digit).count();
    let leaf: usize = last[..digits].parse().expect("a number");
    image.change(|bytes| bytes[leaf * BLOCK as usize..][..100].fill(9));
    image.debugfs_write("set_inode_field file mode 040755");
    image.debugfs_write(&format!("set_inode_field file size {}", 65_000 * BLOCK));
    let volume = image.open();
    let searched = volume.lookup(file, b"absent");
    let error = searched.expect_err("its first block has no names");
    assert!(matches!(error, Error::Corrupt(_)), "{error}");
    assert!(!error.to_string().contains("places"), "{error}");
}

/// Pointer blocks that lead to one block of bad pointers.
#[test]
fn a_directory_whose_map_is_damaged_again_and_again_is_refused() {
    let features = "^extent,^64bit,^metadata_csum,^dir_index";
    let Some(image) = Image::make(&["-b", "1024", "-O", features]) else {
        return;
    };
    let volume = image.open();
    let new = CreateAttributes::default();
    let made = volume.make_directory(InodeNumber::ROOT, b"directory", &new);
    let directory = made.expect("room").inode;
    let made = volume.create(InodeNumber::ROOT, b"nodes", &new);
    let nodes = made.expect("room").inode;
    let fill = |piece: u64, word: u32| {
        let bytes = word.to_le_bytes().repeat(BLOCK as usize / 4);
        let written = volume.write(nodes, piece * BLOCK, &bytes);
        assert_eq!(written.expect("room"), bytes.len());
    };
    fill(0, 0xF0F0_F0F0);
    fill(1, 0);
    let place = |piece| {
        let ranges = volume.extents(nodes, piece * BLOCK, 1);
        ranges.expect("a sound map")[0].physical / BLOCK
    };
    fill(1, u32::try_from(place(0)).expect("a small image"));
    let second = place(1);
    volume.close().expect("it closes");
    image.debugfs_write(&format!("set_inode_field directory block[DIND] {second}"));
    let size = 65_000 * BLOCK;
    image.debugfs_write(&format!("set_inode_field directory size {size}"));
    let volume = image.open();
    for _ in 0..2 {
        let error = volume.lookup(directory, b"absent");
        let error = error.expect_err("its map is damaged");
        assert!(error.to_string().contains("very many places"), "{error}");
    }
}

/// A directory without a name whose map leads to one block again and again. Its blocks would be
/// freed one by one, however many times each of them is mapped: none of them is.
#[test]
fn an_orphan_that_repeats_its_blocks_keeps_them() {
    let features = ["-b", "1024", "-O", "^metadata_csum,^orphan_file"];
    let Some((image, file)) = with_file(&features) else {
        return;
    };
    let leaf = node(&image, "(ETB1):") * BLOCK as usize;
    image.debugfs_write("set_inode_field file mode 040755");
    image.debugfs_write("set_inode_field file links_count 0");
    image.change(|bytes| {
        let entries = &mut bytes[leaf + 12..leaf + BLOCK as usize];
        let [first, rest @ ..] = entries.as_chunks_mut::<12>().0 else {
            unreachable!("a leaf has entries")
        };
        for entry in rest {
            entry[6..].copy_from_slice(&first[6..]);
        }
        // The head of the chain of orphans.
        bytes[1024 + 0xE8..][..4].copy_from_slice(&file.get().to_le_bytes());
    });
    let before = image.debugfs("stats");
    let free = |told: &str| {
        let line = told.lines().find(|line| line.starts_with("Free blocks:"));
        line.expect("debugfs counts them").to_owned()
    };
    let volume = image.open();
    let notes = volume.notes().join("\n");
    assert!(notes.contains("could not be finished"), "{notes}");
    assert!(notes.contains("a block in two places"), "{notes}");
    volume.close().expect("it closes");
    assert_eq!(free(&image.debugfs("stats")), free(&before));
    assert_eq!(image.first_block()[1024 + 0x3A] & 2, 0, "no error is noted");
}

/// A casefolded directory that has a leaf of one which is not: each finds the names in its own way,
/// whichever of them has searched the leaf for a change before.
#[test]
fn directories_that_compare_names_differently_may_have_one_leaf() {
    const NAMES: u32 = 80;
    let features = "casefold,^extent,^64bit,^metadata_csum,^dir_index";
    let Some(image) = Image::make(&["-b", "1024", "-O", features]) else {
        return;
    };
    let volume = image.open();
    let new = CreateAttributes::default();
    let fill = |directory: &str, flags| {
        let made = volume.make_directory(InodeNumber::ROOT, directory.as_bytes(), &new);
        let inode = made.expect("room").inode;
        let change = SetAttributes {
            flags: Some(flags),
            ..SetAttributes::default()
        };
        volume.set_attributes(inode, &change).expect("it is empty");
        for number in 0..NAMES {
            let name = format!("{directory}-{number}");
            let _ = volume.create(inode, name.as_bytes(), &new).expect("room");
        }
        let second = volume.extents(inode, BLOCK, 1).expect("a sound map")[0];
        (inode, (second.physical + BLOCK - second.logical) / BLOCK)
    };
    let (plain, leaf) = fill("Plain", 0);
    let (folded, _) = fill("Folded", InodeFlags::CASEFOLD.bits());
    volume.close().expect("it closes");
    image.debugfs_write(&format!("set_inode_field Folded block[1] {leaf}"));

    let volume = image.open();
    let has = |directory, name: &[u8]| match volume.lookup(directory, name) {
        Ok(_) => true,
        Err(error) if error.is(Refusal::NotFound) => false,
        Err(error) => panic!("{error}"),
    };
    let check = |what: &str| {
        assert!(has(plain, b"Plain-75"), "{what}");
        assert!(!has(plain, b"pLAIN-75"), "{what}");
        assert!(has(folded, b"pLAIN-75"), "{what}");
    };
    for (round, directory) in [plain, folded, plain, folded].into_iter().enumerate() {
        // A search through all leaves, for a change of the last one.
        let name = format!("New-{round}");
        let _ = volume
            .create(directory, name.as_bytes(), &new)
            .expect("room");
        check(&name);
        let gone = [&b"Plain-71"[..], b"plAIN-72", b"Plain-73", b"plAIN-74"][round];
        volume.unlink(directory, gone).expect("it is there");
        check("after a removal");
    }
}
