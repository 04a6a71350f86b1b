//! Content inside inodes (`inline_data`): when it stays, when it moves to blocks, and corruption.

use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread;

use pext4_block::{Device, RamDevice};
use pext4_fs::{
    AllocateMode, CreateAttributes, Error, FileType, InodeNumber, MountOptions, Refusal,
    RenameMode, SetAttributes, SetXattrMode, Volume,
};

use crate::images::Image;

const ROOT: InodeNumber = InodeNumber::ROOT;
/// The number of bytes that fit an inode of 256 bytes.
const ROOM: usize = 128;
const INLINE: u32 = 0x1000_0000;

/// An image with `inline_data`; `None`, with a message, if the tools are missing.
fn image(arguments: &[&str]) -> Option<Image> {
    let mut all = vec!["-I", "256", "-O", "inline_data"];
    all.extend(arguments);
    Image::make(&all)
}

fn checked(volume: Volume, image: &Image) {
    volume.close().expect("it closes");
    image.assert_clean();
}

fn is_inline(volume: &Volume, inode: InodeNumber) -> bool {
    let attributes = volume.attributes(inode).expect("it is there");
    let ranges = volume.extents(inode, 0, 8).expect("sound");
    let without_blocks = ranges.is_empty() && attributes.sectors <= 8 && attributes.size > 0;
    assert!(!without_blocks || attributes.flags & INLINE != 0, "told");
    without_blocks
}

fn content(volume: &Volume, inode: InodeNumber) -> Vec<u8> {
    let size = volume.attributes(inode).expect("it is there").size;
    let mut bytes = vec![0xEE; usize::try_from(size).expect("small") + 10];
    let count = volume.read(inode, 0, &mut bytes).expect("readable");
    bytes.truncate(count);
    bytes
}

fn file(volume: &Volume, name: &[u8], bytes: &[u8]) -> InodeNumber {
    let inode = volume
        .create(ROOT, name, &CreateAttributes::default())
        .expect("a file")
        .inode;
    assert_eq!(volume.write(inode, 0, bytes).expect("written"), bytes.len());
    inode
}

fn resize(volume: &Volume, inode: InodeNumber, size: u64) {
    let change = SetAttributes {
        size: Some(size),
        ..SetAttributes::default()
    };
    volume.set_attributes(inode, &change).expect("resized");
}

fn set_flags(volume: &Volume, inode: InodeNumber, flags: u32) -> Result<u32, Error> {
    let change = SetAttributes {
        flags: Some(flags),
        ..SetAttributes::default()
    };
    Ok(volume.set_attributes(inode, &change)?.flags)
}

fn pattern(length: usize) -> Vec<u8> {
    (1..=250).cycle().take(length).collect()
}

#[test]
fn files_stay_while_they_fit_and_move_out_whole() {
    for block_size in ["1024", "4096"] {
        let Some(image) = image(&["-b", block_size]) else {
            return;
        };
        let volume = image.open();
        let before = volume.statfs().free_blocks;
        for length in [1, 59, 60, 61, ROOM - 1, ROOM] {
            let inode = file(&volume, format!("f{length}").as_bytes(), &pattern(length));
            assert!(is_inline(&volume, inode), "{length} bytes");
            assert_eq!(content(&volume, inode), pattern(length));
            assert_eq!(volume.attributes(inode).expect("there").sectors, 1);
            assert_eq!(volume.seek_data(inode, 0).expect("data"), 0);
            assert_eq!(volume.seek_hole(inode, 0).expect("the end"), length as u64);
        }
        let free = volume.statfs().free_blocks;
        assert_eq!(free, before, "none of them took a block");
        let inode = file(&volume, b"grows", &pattern(100));
        volume.write(inode, 100, &pattern(50)).expect("written");
        assert!(!is_inline(&volume, inode));
        assert_eq!(
            content(&volume, inode),
            [pattern(100), pattern(50)].concat()
        );
        checked(volume, &image);
        let volume = image.open();
        let found = volume.lookup(ROOT, b"f128").expect("it is there").inode;
        assert_eq!(content(&volume, found), pattern(ROOM));
        checked(volume, &image);
    }
}

#[test]
fn what_was_cut_off_does_not_come_back() {
    let Some(image) = image(&[]) else {
        return;
    };
    let volume = image.open();
    for cut in [0, 5, 60, 90] {
        let inode = file(&volume, format!("cut{cut}").as_bytes(), &pattern(ROOM));
        resize(&volume, inode, cut);
        resize(&volume, inode, 120);
        let mut right = pattern(ROOM);
        right.truncate(usize::try_from(cut).expect("small"));
        right.resize(120, 0);
        assert_eq!(content(&volume, inode), right);
        assert!(is_inline(&volume, inode));
        resize(&volume, inode, 5000);
        right.resize(5000, 0);
        assert_eq!(content(&volume, inode), right);
        assert!(!is_inline(&volume, inode));
    }
    let inode = file(&volume, b"gap", b"start");
    volume.write(inode, 100, b"end").expect("written");
    let mut right = b"start".to_vec();
    right.resize(100, 0);
    right.extend(b"end");
    assert_eq!(content(&volume, inode), right);
    assert!(is_inline(&volume, inode));
    checked(volume, &image);
}

#[test]
fn holes_and_space_that_is_asked_for() {
    let Some(image) = image(&[]) else {
        return;
    };
    let volume = image.open();
    let inode = file(&volume, b"punched", &pattern(100));
    volume
        .allocate(inode, AllocateMode::PunchHole, 10, 40)
        .expect("punched");
    let mut right = pattern(100);
    right[10..50].fill(0);
    assert_eq!(content(&volume, inode), right);
    volume
        .allocate(inode, AllocateMode::ZeroRange { keep_size: false }, 90, 30)
        .expect("zeroed");
    right.truncate(90);
    right.resize(120, 0);
    assert_eq!(content(&volume, inode), right);
    assert!(is_inline(&volume, inode));
    volume
        .allocate(inode, AllocateMode::KeepSize, 0, 100_000)
        .expect("allocated");
    assert_eq!(content(&volume, inode), right);
    assert!(!is_inline(&volume, inode));
    checked(volume, &image);
}

#[test]
fn attributes_go_to_a_block_and_content_makes_way() {
    let Some(image) = image(&["-b", "1024"]) else {
        return;
    };
    let volume = image.open();
    let inode = file(&volume, b"file", &pattern(ROOM));
    let set = |inode, name: &[u8], length| {
        volume.set_xattr(inode, name, &pattern(length), SetXattrMode::Any)
    };
    set(inode, b"user.one", 40).expect("in a block");
    assert!(is_inline(&volume, inode));
    let names = volume.xattr_names(inode).expect("listed");
    assert_eq!(names, [b"user.one".to_vec()], "the content is no attribute");
    set(inode, b"user.large", 850).expect("in the block as well");
    assert!(is_inline(&volume, inode));
    set(inode, b"user.more", 60).expect("where the content was");
    assert!(!is_inline(&volume, inode));
    assert_eq!(content(&volume, inode), pattern(ROOM));
    assert_eq!(volume.xattr(inode, b"user.more").expect("set"), pattern(60));
    // An attribute in the inode leaves less room for content.
    let small = file(&volume, b"small", b"x");
    set(small, b"user.own", 20).expect("in the inode");
    volume.write(small, 0, &pattern(ROOM)).expect("written");
    assert!(!is_inline(&volume, small));
    checked(volume, &image);
}

#[test]
fn directories_grow_move_out_and_move_about() {
    let Some(image) = image(&[]) else {
        return;
    };
    let volume = image.open();
    let make = |parent, name: &[u8]| {
        let entry = volume.make_directory(parent, name, &CreateAttributes::default());
        entry.expect("a directory").inode
    };
    let (one, two) = (make(ROOT, b"one"), make(ROOT, b"two"));
    let inner = make(one, b"inner");
    assert_eq!(volume.attributes(one).expect("there").size, 60);
    volume
        .rename(one, b"inner", two, b"moved", RenameMode::Replace)
        .expect("moved");
    assert_eq!(volume.lookup(inner, b"..").expect("the parent").inode, two);
    for number in 0..5 {
        let name = format!("name{number}");
        let _ = volume
            .create(two, name.as_bytes(), &CreateAttributes::default())
            .expect("a file");
    }
    let size = volume.attributes(two).expect("there").size;
    assert!((61..=128).contains(&size), "{size}");
    let mut cookies = Vec::new();
    let list = |cookies: &mut Vec<(Vec<u8>, u64)>| {
        cookies.clear();
        let listed = volume.read_directory(two, 0, &mut |entry| {
            cookies.push((entry.name.to_vec(), entry.next_cookie));
            true
        });
        listed.expect("sound");
    };
    list(&mut cookies);
    assert_eq!(cookies.len(), 8);
    assert_eq!((&*cookies[0].0, &*cookies[1].0), (&b"."[..], &b".."[..]));
    for number in 5..300 {
        let name = format!("name{number}");
        let _ = volume
            .create(two, name.as_bytes(), &CreateAttributes::default())
            .expect("a file");
    }
    assert!(volume.attributes(two).expect("there").size > 4096);
    let mut later = Vec::new();
    list(&mut later);
    assert!(
        cookies
            .iter()
            .skip(2)
            .all(|(name, _)| later.iter().any(|(other, _)| other == name)),
        "no name was lost"
    );
    let place = |list: &[(Vec<u8>, u64)], name: &[u8]| {
        let found = list.iter().find(|(other, _)| other == name);
        found.expect("listed").1
    };
    assert_eq!(place(&cookies, b"name3"), place(&later, b"name3"));
    let full = volume
        .remove_directory(ROOT, b"two")
        .expect_err("not empty");
    assert!(full.is(Refusal::NotEmpty));
    for number in 0..300 {
        let name = format!("name{number}");
        volume.unlink(two, name.as_bytes()).expect("removed");
    }
    volume.remove_directory(two, b"moved").expect("empty");
    volume.remove_directory(ROOT, b"two").expect("empty");
    volume.remove_directory(ROOT, b"one").expect("empty");
    checked(volume, &image);
}

/// Links whose target is stored beside the attributes, as mke2fs and debugfs make them.
#[test]
fn long_links() {
    let Some(image) = image(&[]) else {
        return;
    };
    let target = "t".repeat(100);
    image.debugfs_write(&format!("symlink /link {target}"));
    let volume = image.open();
    let link = volume.lookup(ROOT, b"link").expect("it is there");
    assert_eq!(link.attributes.file_type, FileType::Symlink);
    assert_eq!(link.attributes.sectors, 0, "it is in the inode");
    let read = || volume.read_link(link.inode).expect("readable");
    assert_eq!(read(), target.as_bytes());
    volume
        .set_xattr(link.inode, b"trusted.a", &pattern(200), SetXattrMode::Any)
        .expect("set");
    assert_eq!(read(), target.as_bytes());
    checked(volume, &image);
}

#[test]
fn a_full_disk_leaves_content_where_it_is() {
    let Some(image) = image(&["-m", "0", "-N", "64"]) else {
        return;
    };
    let volume = image.open();
    let inode = file(&volume, b"small", &pattern(100));
    let filler = file(&volume, b"filler", b"");
    let mut end = 0;
    while let Ok(written) = volume.write(filler, end, &[1; 1 << 16]) {
        end += written as u64;
    }
    let full = volume.write(inode, 100, &pattern(100)).expect_err("full");
    assert!(full.is(Refusal::NoSpace), "{full}");
    assert_eq!(content(&volume, inode), pattern(100));
    assert!(is_inline(&volume, inode));
    checked(volume, &image);
}

/// Files that are longer than the content in their inode, as `mke2fs -d` makes them from holes:
/// they end in zeroes, and a change moves them to blocks.
#[test]
fn files_longer_than_their_inode_end_in_zeroes() {
    type Change = fn(&Volume, InodeNumber, &mut Vec<u8>);
    const CHANGES: [Change; 8] = [
        |_, _, _| {},
        |volume, inode, right| {
            volume.write(inode, 50, b"inside").expect("written");
            right[50..56].copy_from_slice(b"inside");
        },
        |volume, inode, right| {
            volume.write(inode, 9000, b"behind").expect("written");
            right.resize(right.len().max(9006), 0);
            right[9000..9006].copy_from_slice(b"behind");
        },
        |volume, inode, right| {
            let cut = [0, 80, 120, 5000].map(|size| size.min(right.len() - 1));
            for size in cut.into_iter().rev() {
                resize(volume, inode, size as u64);
                right.truncate(size);
                assert!(content(volume, inode) == *right);
            }
        },
        |volume, inode, right| {
            resize(volume, inode, 200_000);
            right.resize(200_000, 0);
        },
        |volume, inode, right| {
            let punch = AllocateMode::PunchHole;
            volume.allocate(inode, punch, 30, 9000).expect("punched");
            right[30..100].fill(0);
        },
        |volume, inode, _| {
            let result = volume.allocate(inode, AllocateMode::KeepSize, 0, 10);
            result.unwrap_or_else(|error| assert!(error.is(Refusal::NotSupported), "a block map"));
        },
        |volume, inode, _| {
            let value = pattern(600);
            volume
                .set_xattr(inode, b"user.large", &value, SetXattrMode::Any)
                .expect("set");
            volume
                .set_xattr(inode, b"user.more", &pattern(80), SetXattrMode::Any)
                .expect("set");
        },
    ];
    for (arguments, size) in [
        (&["-b", "1024"][..], 110),
        (&["-b", "1024"], 100_000),
        (&["-O", "^extents,^64bit"], 100_000),
    ] {
        let Some(image) = image(arguments) else {
            return;
        };
        let volume = image.open();
        for number in 0..CHANGES.len() {
            file(&volume, format!("f{number}").as_bytes(), &pattern(100));
        }
        volume.close().expect("it closes");
        for number in 0..CHANGES.len() {
            image.debugfs_write(&format!("sif /f{number} size {size}"));
        }
        image.assert_clean();
        let volume = image.open();
        let mut all = Vec::new();
        for (number, change) in CHANGES.iter().enumerate() {
            let name = format!("f{number}");
            let found = volume.lookup(ROOT, name.as_bytes()).expect("it is there");
            let mut right = pattern(100);
            right.resize(size, 0);
            assert!(content(&volume, found.inode) == right, "{name}");
            assert_eq!(volume.seek_hole(found.inode, 0).expect("a hole"), 100);
            change(&volume, found.inode, &mut right);
            assert!(content(&volume, found.inode) == right, "{name}, changed");
            all.push((name, right));
        }
        checked(volume, &image);
        let volume = image.open();
        for (name, right) in all {
            let found = volume.lookup(ROOT, name.as_bytes()).expect("it is there");
            assert!(content(&volume, found.inode) == right, "{name}");
        }
        checked(volume, &image);
    }
}

/// Slots that are marked as inline and cannot be: the error names the inode.
#[test]
fn damaged_content_is_told() {
    for (name, request) in [
        ("file", "ea_rm /file system.data".to_owned()),
        ("file", format!("sif /file flags {:#x}", INLINE | 0x8_0000)),
        ("folder", "sif /folder size 64".to_owned()),
        (
            "folder",
            format!("sif /folder flags {:#x}", INLINE | 0x1000),
        ),
    ] {
        let Some(image) = image(&[]) else {
            return;
        };
        let volume = image.open();
        file(&volume, b"file", &pattern(100));
        let _ = volume
            .make_directory(ROOT, b"folder", &CreateAttributes::default())
            .expect("a directory");
        volume.close().expect("it closes");
        image.debugfs_write(&request);
        let volume = image.open();
        match volume.lookup(ROOT, name.as_bytes()) {
            Err(Error::Corrupt(corrupt)) => {
                assert!(
                    corrupt.to_string().contains("inode"),
                    "{request}: {corrupt}"
                );
            }
            other => panic!("{request}: {other:?}"),
        }
    }
}

#[test]
fn flags_are_told_and_set_beside_content() {
    const NODUMP: u32 = 0x40;
    const JOURNAL_DATA: u32 = 0x4000;
    const EXTENTS: u32 = 0x8_0000;
    let Some(image) = image(&[]) else {
        return;
    };
    let volume = image.open();
    let made = volume.make_directory(ROOT, b"folder", &CreateAttributes::default());
    let folder = made.expect("a directory").inode;
    let file = file(&volume, b"file", b"short");
    for inode in [folder, file] {
        let told = volume.attributes(inode).expect("there").flags;
        assert_eq!(told & INLINE, INLINE, "{told:#x}");
        // A program sets all flags that it has read, or only those that it knows.
        for form in [told, told & !INLINE] {
            let set = set_flags(&volume, inode, form | NODUMP).expect("nodump");
            assert_eq!(set, told | NODUMP);
        }
        let error = set_flags(&volume, inode, told | JOURNAL_DATA).expect_err("not done here");
        assert!(error.is(Refusal::NotSupported), "{error}");
        let error = set_flags(&volume, inode, told | EXTENTS).expect_err("there is no map");
        assert!(error.is(Refusal::Invalid), "{error}");
    }
    assert_eq!(content(&volume, file), b"short");
    checked(volume, &image);
}

/// A device that looks at the size of a file whenever something is written to it.
struct Watching {
    below: RamDevice,
    watched: OnceLock<(Weak<Volume>, InodeNumber)>,
    sizes: Mutex<Vec<u64>>,
}

impl Device for Watching {
    fn size(&self) -> u64 {
        self.below.size()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> std::io::Result<()> {
        self.below.read_at(offset, into)
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> std::io::Result<()> {
        let watched = self.watched.get();
        if let Some((volume, inode)) = watched
            && let Some(volume) = volume.upgrade()
        {
            // On a thread of its own, since the writer holds locks.
            let look = || volume.attributes(*inode).expect("it is there").size;
            let size = thread::scope(|scope| scope.spawn(look).join().expect("no panic"));
            self.sizes.lock().expect("no panic").push(size);
        }
        self.below.write_at(offset, from)
    }

    fn flush(&self) -> std::io::Result<()> {
        self.below.flush()
    }
}

#[test]
fn a_file_whose_content_moves_out_does_not_look_shorter_meanwhile() {
    let Some(image) = image(&[]) else {
        return;
    };
    let device = Arc::new(Watching {
        below: RamDevice::load(&image.path).expect("the image"),
        watched: OnceLock::new(),
        sizes: Mutex::new(Vec::new()),
    });
    let above: Arc<dyn Device> = Arc::<Watching>::clone(&device);
    let volume = Volume::open(above, MountOptions::default()).expect("a mount");
    let volume = Arc::new(volume);
    let inode = file(&volume, b"log", &pattern(100));
    let watch = (Arc::downgrade(&volume), inode);
    device.watched.set(watch).expect("it is set once");
    volume.write(inode, 100, &[7; 300]).expect("room");
    let sizes = device.sizes.lock().expect("no panic").clone();
    assert!(
        !sizes.is_empty() && sizes.iter().all(|&size| size >= 100),
        "{sizes:?}"
    );
    assert_eq!(content(&volume, inode).len(), 400);
}
