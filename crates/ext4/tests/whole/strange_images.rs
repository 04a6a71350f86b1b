//! Images that no tool makes by itself: they cause an error, and no hang or damage.

use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use pext4_block::{Access, Device, FileDevice, RamDevice};
use pext4_fs::{
    AllocateMode, CreateAttributes, Error, InodeNumber, MountOptions, Refusal, RenameMode,
    SetAttributes, Volume,
};

use crate::images::{Image, comes_back, inode};

#[test]
fn a_file_mapped_onto_metadata_is_neither_written_nor_freed() {
    // Group 0 has its bitmaps and inode table well below block 200 (with blocks of 1 KiB).
    let root = ["sif file block[5] 130"];
    let Some(image) = Image::with_file(&["-b", "1024"], &[7; 8000], &root) else {
        return;
    };
    type Act = fn(&Volume, InodeNumber) -> pext4_fs::Result<()>;
    let acts: [Act; 3] = [
        |volume, file| volume.write(file, 0, &[1; 4096]).map(|_| ()),
        |volume, file| volume.read(file, 0, &mut [0; 4096]).map(|_| ()),
        |volume, file| {
            volume
                .set_attributes(
                    file,
                    &SetAttributes {
                        size: Some(0),
                        ..SetAttributes::default()
                    },
                )
                .map(|_| ())
        },
    ];
    for (number, act) in acts.iter().enumerate() {
        let (device, volume) = image.load();
        let metadata = |device: &RamDevice| {
            let mut bytes = vec![0; 8192];
            device
                .read_at(130 << 10, &mut bytes)
                .expect("a ram device works");
            bytes
        };
        let before = metadata(&device);
        let file = inode(&volume, "/file");
        let error = act(&volume, file).expect_err("its blocks are the file system's");
        assert!(matches!(error, Error::Corrupt(_)), "{number}: {error}");
        drop(volume);
        assert!(
            metadata(&device) == before,
            "{number}: metadata was changed"
        );
    }
}

#[test]
fn a_file_mapped_onto_the_journal_is_refused() {
    let Some(probe) = Image::make(&["-b", "1024"]) else {
        return;
    };
    let blocks = probe.debugfs("blocks <8>");
    let first = blocks
        .split_whitespace()
        .find_map(|word| word.parse::<u32>().ok())
        .expect("the journal has blocks");
    let request = format!("sif file block[5] {first}");
    let Some(image) = Image::with_file(&["-b", "1024"], &[7; 8000], &[&request]) else {
        return;
    };
    let (_device, volume) = image.load();
    let file = inode(&volume, "/file");
    assert!(matches!(
        volume.write(file, 0, b"log"),
        Err(Error::Corrupt(_))
    ));
}

#[test]
fn a_directory_that_holds_itself_is_no_trap() {
    let requests = ["mkdir d", "ln d d/self"];
    let Some(image) = Image::with_file(&["-b", "1024"], b"x", &requests) else {
        return;
    };
    type Act = fn(&Volume, InodeNumber) -> pext4_fs::Result<()>;
    let acts: [Act; 5] = [
        |volume, d| volume.lookup(d, b"self").map(|_| ()),
        |volume, d| volume.remove_directory(d, b"self"),
        |volume, d| volume.rename(d, b"self", d, b"other", RenameMode::Replace),
        |volume, d| volume.rename(d, b"self", InodeNumber::ROOT, b"other", RenameMode::Replace),
        |volume, d| volume.rename(InodeNumber::ROOT, b"file", d, b"self", RenameMode::Exchange),
    ];
    for act in acts {
        let (_device, volume) = image.load();
        let d = inode(&volume, "/d");
        let error = comes_back(move || act(&volume, d)).expect_err("a directory is in itself");
        assert!(matches!(error, Error::Corrupt(_)), "{error}");
    }
}

#[test]
fn directories_that_hold_each_other_do_not_lock_each_other_out() {
    let requests = ["mkdir a", "mkdir a/b", "ln a a/b/a"];
    let Some(image) = Image::with_file(&["-b", "1024"], b"x", &requests) else {
        return;
    };
    let (_device, volume) = image.load();
    let volume = Arc::new(volume);
    let (a, b) = (inode(&volume, "/a"), inode(&volume, "/a/b"));
    comes_back(move || {
        let turn = |parent: InodeNumber, name: &'static [u8]| {
            let volume = Arc::clone(&volume);
            std::thread::spawn(move || {
                for _ in 0..3000 {
                    let removed = volume.remove_directory(parent, name);
                    assert!(removed.is_err_and(|error| error.is(Refusal::NotEmpty)));
                }
            })
        };
        for thread in [turn(a, b"b"), turn(b, b"a"), turn(a, b"b"), turn(b, b"a")] {
            thread.join().expect("refused each time");
        }
    });
}

/// The number may date from before the file system grew, or be arbitrary.
#[test]
fn how_many_blocks_the_superblock_leaves_out_is_not_believed() {
    const OVERHEAD: usize = 1024 + 0x248;
    let Some(image) = Image::make(&["-b", "1024", "-O", "^metadata_csum"]) else {
        return;
    };
    let blocks = || image.load().1.statfs().blocks;
    let told = u32::from_le_bytes(image.first_block()[OVERHEAD..][..4].try_into().expect("4"));
    assert_ne!(told, 0, "mke2fs notes it");
    assert_eq!(blocks(), (64 << 10) - u64::from(told));
    for wrong in [1, 0xFFFF_FFFF_u32] {
        image.change(|bytes| bytes[OVERHEAD..][..4].copy_from_slice(&wrong.to_le_bytes()));
        assert_eq!(blocks(), (64 << 10) - u64::from(told));
    }
}

/// Names and targets are shown as they are stored, whatever bytes they hold.
#[test]
fn encrypted_content_can_be_read_as_stored() {
    let Some(image) = Image::make(&["-b", "1024", "-O", "encrypt,^metadata_csum,^dir_index"])
    else {
        return;
    };
    for request in [
        "mkdir d",
        "write /dev/null d/secret~name",
        "symlink d/link aaaaaaaaaaaaaaaaaa",
        "sif d/link flags 0x800",
        "sif d/link block[0] 0x61610010",
        "sif d flags 0x80800",
    ] {
        image.debugfs_write(request);
    }
    image.change(|bytes| {
        let found = bytes.windows(11).position(|part| part == b"secret~name");
        bytes[found.expect("in the directory") + 6] = b'/';
    });
    let device = Arc::new(RamDevice::load(&image.path).expect("the image"));
    let options = MountOptions {
        read_only: true,
        ..MountOptions::default()
    };
    let volume = Volume::open(device, options).expect("a mount");
    let directory = inode(&volume, "/d");
    let mut names = Vec::new();
    let take = &mut |entry: pext4_fs::DirectoryEntry<'_>| {
        names.push(entry.name.to_vec());
        true
    };
    volume.read_directory(directory, 0, take).expect("sound");
    assert!(names.contains(&b"secret/name".to_vec()), "{names:?}");
    let _ = volume
        .lookup(directory, b"secret/name")
        .expect("it was listed");
    let link = volume.lookup(directory, b"link").expect("it was listed");
    let target = volume.read_link(link.inode).expect("as it is stored");
    assert_eq!(target[..4], [0x10, 0, 0x61, 0x61]);
    assert_eq!(target.len(), 18);
}

#[test]
fn a_name_that_no_file_can_have_hides_no_other() {
    let Some(image) = Image::make(&["-b", "1024", "-O", "^metadata_csum,^dir_index"]) else {
        return;
    };
    let volume = image.open();
    for name in ["/before", "/spoilt~name", "/behind"] {
        volume.paths().write(name, b"").expect("a file");
    }
    volume.close().expect("it closes");
    image.change(|bytes| {
        let found = bytes.windows(11).position(|part| part == b"spoilt~name");
        bytes[found.expect("in the root") + 6] = b'/';
    });
    let (_, volume) = image.load();
    let mut names = Vec::new();
    let listed = volume.read_directory(InodeNumber::ROOT, 0, &mut |entry| {
        names.push(String::from_utf8_lossy(entry.name).into_owned());
        true
    });
    assert!(matches!(listed, Err(Error::Corrupt(_))), "{listed:?}");
    names.sort_unstable();
    assert_eq!(names, [".", "..", "before", "behind", "lost+found"]);
}

#[test]
fn names_of_inodes_that_nobody_may_have_are_corruption() {
    let evil = ["ln <12> evil"];
    let Some(orphan_file) = Image::make(&["-O", "orphan_file"]) else {
        return;
    };
    orphan_file.debugfs_write(evil[0]);
    let Some(unlinked) = Image::with_file(&[], b"content", &["sif file links_count 0"]) else {
        return;
    };
    for (image, name) in [(orphan_file, &b"evil"[..]), (unlinked, b"file")] {
        let (_device, volume) = image.load();
        for result in [
            volume.lookup(InodeNumber::ROOT, name).map(|_| ()),
            volume.unlink(InodeNumber::ROOT, name),
        ] {
            let error = result.expect_err("no name may lead there");
            assert!(
                matches!(error, Error::Corrupt(_) | Error::Refused(Refusal::ReadOnly)),
                "{error}"
            );
        }
    }
}

#[test]
fn an_absurdly_long_journal_is_refused_at_once() {
    // 2^32 - 1 blocks, which one indirect block, used on three levels, maps again and again.
    let features = "^extents,^64bit,^metadata_csum";
    let Some(image) = Image::with_file(&["-b", "4096", "-O", features], b"x", &[]) else {
        return;
    };
    let stat = image.debugfs("stat <8>");
    let indirect = stat
        .split("(IND):")
        .nth(1)
        .and_then(|rest| rest.split(',').next())
        .expect("an indirect block");
    image.debugfs_write(&format!("sif <8> block[TIND] {indirect}"));
    image.debugfs_write("sif <8> size 17592186040320");
    let device = Arc::new(RamDevice::load(&image.path).expect("the image"));
    let mounted = comes_back(move || Volume::open(device, MountOptions::default()).map(drop));
    assert!(matches!(mounted, Err(Error::Corrupt(_))));
    // As large as a file system that could contain it, mostly a hole.
    image.debugfs_write("sif <8> size 1099511627776");
    let file = std::fs::OpenOptions::new().write(true).open(&image.path);
    let file = file.expect("the image");
    file.set_len(1 << 40).expect("a sparse file");
    let [inodes, blocks] = [(1u32 << 28) / 32_768 * 16_384, 1 << 28].map(u32::to_le_bytes);
    file.write_all_at(&[inodes, blocks].concat(), 1024)
        .expect("the image");
    for (is_own, problem) in [(false, "has a hole"), (true, "leads to a block twice")] {
        if is_own {
            let number: u32 = indirect.trim().parse().expect("a number");
            let itself = number.to_le_bytes().repeat(1024);
            file.write_all_at(&itself, u64::from(number) * 4096)
                .expect("the image");
        }
        let device = FileDevice::open(&image.path, Access::ReadWrite, Duration::from_secs(10));
        let device = Arc::new(device.expect("the image"));
        let mounted = comes_back(move || Volume::open(device, MountOptions::default()).map(drop));
        let told = mounted.expect_err("a journal has other blocks").to_string();
        assert!(told.contains(problem), "{told}");
    }
}

/// A refused image is left as it was, including the superblock.
#[test]
fn a_journal_that_cannot_be_used_leaves_no_mark() {
    // An unknown feature, one that only writers must know, each with a log and without; and no
    // room.
    let edits: [(usize, u32, u32); 5] = [
        (0x28, 0x1000, 0),
        (0x28, 0x1000, 1),
        (0x2C, 1, 0),
        (0x2C, 1, 1),
        (0x10, 5, 0),
    ];
    for (at, word, start) in edits {
        let Some(image) = Image::make(&["-b", "1024", "-O", "orphan_file"]) else {
            return;
        };
        let blocks = image.debugfs("blocks <8>");
        let first = blocks
            .split_whitespace()
            .find_map(|word| word.parse::<usize>().ok())
            .expect("the journal has blocks");
        let mut bytes = std::fs::read(&image.path).expect("the image");
        let superblock = &mut bytes[first * 1024..][..1024];
        superblock[at..at + 4].copy_from_slice(&word.to_be_bytes());
        superblock[0x1C..0x20].copy_from_slice(&start.to_be_bytes());
        std::fs::write(&image.path, &bytes).expect("the image");
        let device = Arc::new(RamDevice::load(&image.path).expect("the image"));
        let mounted = Volume::open(Arc::clone(&device) as _, MountOptions::default());
        assert!(mounted.is_err(), "{at:#x} {word:#x} {start}");
        drop(mounted);
        let mut after = vec![0; bytes.len()];
        device.read_at(0, &mut after).expect("inside");
        assert!(after == bytes, "{at:#x} {word:#x} {start}: it was changed");
    }
}

/// Zeroing a range of a file with a block map is refused for its format, but first, as on Linux,
/// because only its end may change.
fn zeroing_asks_for_the_right_to_change(volume: &Volume, file: InodeNumber) {
    const APPEND: u32 = 0x20;
    let before = volume.attributes(file).expect("it is there").flags;
    let set = |flags| {
        let change = SetAttributes {
            flags: Some(flags),
            ..SetAttributes::default()
        };
        volume.set_attributes(file, &change).expect("it is ours");
    };
    for (flags, refusal) in [
        (before | APPEND, Refusal::NotPermitted),
        (before, Refusal::NotSupported),
    ] {
        set(flags);
        for keep_size in [true, false] {
            let zero = AllocateMode::ZeroRange { keep_size };
            let refused = volume.allocate(file, zero, 0, 1000);
            let refused = refused.expect_err("a block map has no unwritten blocks");
            assert!(refused.is(refusal), "{flags:#x}: {refused}");
        }
    }
}

#[test]
fn files_of_indirect_blocks_live_beside_others() {
    let Some(image) = Image::with_file(
        &["-b", "1024", "-O", "^extents,^64bit"],
        &[7; 300_000],
        &["symlink empty x"],
    ) else {
        return;
    };
    let tuned = std::process::Command::new("tune2fs")
        .args(["-O", "extents"])
        .arg(&image.path)
        .output();
    assert!(tuned.expect("tune2fs").status.success());
    let (device, volume) = image.load();
    let file = inode(&volume, "/file");
    let resize = |size| SetAttributes {
        size: Some(size),
        ..SetAttributes::default()
    };
    let free = || volume.statfs().free_blocks;
    let before = free();
    volume.set_attributes(file, &resize(280_100)).expect("cut");
    volume
        .set_attributes(file, &resize(400_000))
        .expect("grown");
    volume.write(file, 5000, &[9; 3000]).expect("in place");
    volume.write(file, 399_000, &[8; 1000]).expect("in a hole");
    volume.sync().expect("a commit");
    assert_eq!(free() - before, 19 - 2, "two blocks were mapped again");
    let content = volume.paths().read("/file").expect("readable");
    assert_eq!(content[4999..5001], [7, 9]);
    assert_eq!(content[280_099..280_101], [7, 0]);
    assert_eq!(content[399_000..], [8; 1000]);
    let ahead = volume.allocate(file, AllocateMode::Extend, 0, 500_000);
    let ahead = ahead.expect_err("a block map has no unwritten blocks");
    assert!(ahead.is(Refusal::NotSupported));
    zeroing_asks_for_the_right_to_change(&volume, file);
    volume
        .allocate(file, AllocateMode::PunchHole, 20_000, 200_000)
        .expect("a hole");
    volume
        .paths()
        .write("/new", vec![1; 5000])
        .expect("new files have extents");
    volume
        .rename(
            InodeNumber::ROOT,
            b"new",
            InodeNumber::ROOT,
            b"file",
            RenameMode::Replace,
        )
        .expect("the old file ends");
    volume
        .unlink(InodeNumber::ROOT, b"empty")
        .expect("it has no blocks");
    volume.close().expect("a clean close");
    device.save(&image.path).expect("saved");
    image.assert_clean();
}

#[test]
fn a_directory_that_claims_more_than_it_can_have_is_corrupt() {
    // 16 TiB of one repeated block would take an hour to read.
    let requests = ["mkdir d", "sif d size 17592186040320"];
    let Some(image) = Image::with_file(&["-b", "4096"], b"x", &requests) else {
        return;
    };
    let (_, volume) = image.load();
    let found = volume.lookup(InodeNumber::ROOT, b"d");
    assert!(matches!(found, Err(Error::Corrupt(_))), "{found:?}");
}

/// The offset of the superblock, and of some of its fields.
const SUPERBLOCK: usize = 1024;
const STATE: usize = SUPERBLOCK + 58;

#[test]
fn an_image_that_was_not_closed_cleanly_stays_so_until_it_is_checked() {
    let Some(image) = Image::make(&["-O", "^has_journal,^metadata_csum"]) else {
        return;
    };
    for clean in [1, 0] {
        image.change(|bytes| bytes[STATE] = clean);
        let volume = image.open();
        let made = volume.create(
            InodeNumber::ROOT,
            &[b'a' + clean],
            &CreateAttributes::default(),
        );
        let _ = made.expect("a file");
        volume.close().expect("it closes");
        let bytes = std::fs::read(&image.path).expect("the image");
        assert_eq!(bytes[STATE] & 1, clean);
    }
}

/// Old systems marked short links so.
#[test]
fn a_short_link_may_be_marked_as_mapped_by_extents() {
    let Some(image) = Image::make(&["-b", "1024"]) else {
        return;
    };
    let volume = image.open();
    volume.paths().symlink("target", "/link").expect("room");
    volume.close().expect("it closes");
    image.debugfs_write("sif /link flags 0x80000");
    let volume = image.open();
    let target = volume.paths().read_link("/link").expect("it is there");
    assert_eq!(target, b"target");
    volume.paths().remove_file("/link").expect("it can go");
    volume.close().expect("it closes");
    image.assert_clean();
}

#[test]
fn a_cut_that_fails_leaves_the_file_for_the_next_mount() {
    const LAST_ORPHAN: usize = SUPERBLOCK + 0xE8;
    let Some(image) = Image::make(&["-b", "1024", "-O", "^orphan_file"]) else {
        return;
    };
    let volume = image.open();
    let made = volume.create(InodeNumber::ROOT, b"file", &CreateAttributes::default());
    let file = made.expect("a file").inode;
    for block in 0..20 {
        let written = volume.write(file, block * 2048, &[7; 1024]);
        assert_eq!(written.expect("written"), 1024);
    }
    volume.close().expect("it closes");
    let told = image.debugfs("stat file");
    let node = told.split("(ETB0):").nth(1).expect("a node of its own");
    let digits = node.bytes().take_while(u8::is_ascii_digit).count();
    let node: usize = node[..digits].parse().expect("a number");
    image.change(|bytes| bytes[node * 1024..][..1024].fill(0));
    let volume = image.open();
    let cut = SetAttributes {
        size: Some(0),
        ..SetAttributes::default()
    };
    let failed = volume.set_attributes(file, &cut).expect_err("no such tree");
    assert!(matches!(failed, Error::Corrupt(_)), "{failed}");
    volume.close().expect("it closes");
    let bytes = std::fs::read(&image.path).expect("the image");
    assert_eq!(u64::from(bytes[LAST_ORPHAN]), u64::from(file.get()));
    image.open().close().expect("still an image");
}

#[test]
fn a_damaged_file_loses_its_name_and_the_volume_goes_on() {
    // With blocks of 1 KiB group 0 has its bitmaps and inode table well below block 200; a tree's
    // first extent begins at word 5 of the map, its magic is in word 0.
    let damages = ["sif file block[5] 130", "sif file block[0] 7"];
    for damage in damages {
        let Some(image) = Image::with_file(&["-b", "1024"], &[7; 8000], &[damage]) else {
            return;
        };
        let (device, volume) = image.load();
        let root = InodeNumber::ROOT;
        volume.unlink(root, b"file").expect(damage);
        let gone = volume.lookup(root, b"file").expect_err("it has no name");
        assert!(gone.is(Refusal::NotFound), "{damage}: {gone}");
        let _ = volume
            .create(root, b"next", &CreateAttributes::default())
            .expect("the volume goes on");
        volume.close().expect("it closes");
        device.save(&image.path).expect("a temporary file");
        let told = image.debugfs("stats -h");
        assert!(told.contains("with errors"), "{damage}: {told}");
    }
}

#[test]
fn a_name_goes_though_the_block_of_attributes_is_damaged() {
    let Some(image) = Image::with_file(&["-I", "128"], b"x", &["ea_set file user.name value"])
    else {
        return;
    };
    let told = image.debugfs("stat file");
    let block = told
        .split("File ACL: ")
        .nth(1)
        .expect("a block of attributes");
    let digits = block.bytes().take_while(u8::is_ascii_digit).count();
    let block: usize = block[..digits].parse().expect("a number");
    let block_size = 1024 << u32::from(image.first_block()[SUPERBLOCK + 24]);
    image.change(|bytes| bytes[block * block_size..][..64].fill(0));
    let (_, volume) = image.load();
    let root = InodeNumber::ROOT;
    volume.unlink(root, b"file").expect("it loses its name");
    let _ = volume
        .create(root, b"next", &CreateAttributes::default())
        .expect("the volume goes on");
}

#[test]
fn a_number_that_a_bitmap_gives_out_wrongly_is_not_born_again() {
    // The orphan file has inode 12 here. Bitmap and counts are consistent with each other, and
    // wrong.
    let requests = [
        "freei <12>",
        "set_bg 0 free_inodes_count 8180",
        "ssv free_inodes_count 16372",
        "set_bg 0 checksum calc",
    ];
    let arguments = [
        "-O",
        "orphan_file",
        "-N",
        "16384",
        "-g",
        "8192",
        "-b",
        "4096",
    ];
    let Some(image) = Image::with_file(&arguments, b"x", &requests) else {
        return;
    };
    let (_, volume) = image.load();
    let made = volume.create(InodeNumber::ROOT, b"new", &CreateAttributes::default());
    let refused = made.expect_err("its group cannot be trusted");
    assert!(matches!(refused, Error::Corrupt(_)), "{refused}");
    let made = volume.create(InodeNumber::ROOT, b"new", &CreateAttributes::default());
    let number = made.expect("other groups can").inode;
    assert!(number.get() > 8192, "{number}");
}

/// As Linux refuses it; what is there can be read all the same.
#[test]
fn inodes_with_more_extra_than_room_are_not_written() {
    for request in [
        "ssv min_extra_isize 32768",
        "ssv want_extra_isize 60000",
        "ssv want_extra_isize 132",
    ] {
        let Some(image) = Image::with_file(&["-I", "256"], b"content", &[request]) else {
            return;
        };
        let field = request.split(' ').nth(1).expect("a field");
        let open = |read_only| {
            let device = Arc::new(RamDevice::load(&image.path).expect("the image"));
            let options = MountOptions {
                read_only,
                ..MountOptions::default()
            };
            Volume::open(device, options)
        };
        let told = open(false).expect_err(request).to_string();
        assert!(told.contains(field) && told.contains("-o ro"), "{told}");
        let volume = open(true).expect("it can be read");
        assert_eq!(volume.paths().read("/file").expect("read"), b"content");
    }
}
