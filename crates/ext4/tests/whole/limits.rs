//! The largest files and counts, and the smallest groups and journals.

use pext4_fs::{
    AllocateMode, CreateAttributes, InodeNumber, Refusal, RenameMode, SetAttributes, Volume,
};

use crate::images::{Image, comes_back, inode};

fn set_size(volume: &Volume, file: InodeNumber, size: u64) -> pext4_fs::Result<()> {
    let change = SetAttributes {
        size: Some(size),
        ..SetAttributes::default()
    };
    volume.set_attributes(file, &change).map(drop)
}

#[test]
fn tiny_groups_and_the_smallest_journal_do() {
    let Some(image) = Image::make(&["-b", "1024", "-g", "512", "-J", "size=1"]) else {
        return;
    };
    let (device, volume) = image.load();
    let paths = volume.paths();
    for round in 0..3 {
        for number in 0..30 {
            paths
                .write(format!("/{number}"), vec![round; 100_000])
                .expect("there is room");
        }
        paths
            .write("/long", vec![round; 8 << 20])
            .expect("there is room");
        for number in (0..30).step_by(2) {
            paths.remove_file(format!("/{number}")).expect("unlink");
        }
        paths.rename("/1", "/3").expect("rename over a file");
        paths.remove_file("/long").expect("unlink");
    }
    volume.close().expect("a clean close");
    device.save(&image.path).expect("saved");
    image.assert_clean();
}

#[test]
fn a_large_directory_is_freed_in_the_smallest_journal() {
    let Some(image) = Image::make(&["-b", "1024", "-J", "size=1", "-N", "20000"]) else {
        return;
    };
    let (device, volume) = image.load();
    let made = volume.make_directory(
        InodeNumber::ROOT,
        b"d",
        &CreateAttributes {
            permissions: 0o755,
            ..CreateAttributes::default()
        },
    );
    let d = made.expect("mkdir").inode;
    let name = |number: u32| format!("{number:0200}").into_bytes();
    for number in 0..6000 {
        let entry = volume
            .create(d, &name(number), &CreateAttributes::default())
            .expect("create");
        volume.forget(entry.inode, 1);
    }
    for number in 0..6000 {
        volume.unlink(d, &name(number)).expect("unlink");
    }
    volume.forget(d, 1);
    volume
        .remove_directory(InodeNumber::ROOT, b"d")
        .expect("rmdir");
    volume.close().expect("a clean close");
    device.save(&image.path).expect("saved");
    image.assert_clean();
}

#[test]
fn a_directory_in_anothers_place_changes_no_count_at_the_limit() {
    let requests = ["mkdir p", "mkdir p/d", "mkdir q", "mkdir q/x", "mkdir q/y"];
    let counts = ["sif p links_count 65000", "sif q links_count 4"];
    let Some(image) = Image::with_file(&[], b"x", &[&requests[..], &counts].concat()) else {
        return;
    };
    let (_, volume) = image.load();
    let [p, q] = ["/p", "/q"].map(|path| inode(&volume, path));
    let links = |directory| volume.attributes(directory).expect("there").links;
    volume
        .rename(q, b"x", p, b"d", RenameMode::Replace)
        .expect("one empty directory replaces another");
    assert_eq!((links(p), links(q)), (65_000, 3));
    volume
        .rename(q, b"y", p, b"d", RenameMode::Exchange)
        .expect("two directories change places");
    assert_eq!((links(p), links(q)), (65_000, 3));
    // Within one directory there is one fewer.
    volume
        .make_directory(q, b"z", &CreateAttributes::default())
        .and_then(|_| volume.rename(q, b"z", q, b"y", RenameMode::Replace))
        .expect("moved");
    assert_eq!(links(q), 3);
    // Exchanging a directory for a file adds one here and removes one there.
    let _ = volume
        .create(q, b"f", &CreateAttributes::default())
        .expect("a file");
    volume
        .rename(p, b"d", q, b"f", RenameMode::Exchange)
        .expect("a directory and a file change places");
    assert_eq!((links(p), links(q)), (64_999, 4));
}

#[test]
fn a_file_has_no_more_blocks_than_its_inode_can_count() {
    let Some(image) = Image::make(&["-b", "4096", "-O", "^huge_file"]) else {
        return;
    };
    let volume = image.open();
    let made = volume.create(InodeNumber::ROOT, b"file", &CreateAttributes::default());
    let file = made.expect("a file").inode;
    let grow = |size| set_size(&volume, file, size);
    // 2^32 units of 512 bytes are 2 TiB, including the blocks of the tree itself.
    let refused = grow(2 << 40).expect_err("more than can be counted");
    assert!(refused.is(Refusal::FileTooLarge), "{refused}");
    grow((2 << 40) - (16 << 30)).expect("that can");
    let punch = |length| volume.allocate(file, AllocateMode::PunchHole, 0, length);
    let refused = punch(2 << 40).expect_err("a hole ends where a file may");
    assert!(refused.is(Refusal::FileTooLarge), "{refused}");
    punch(1 << 40).expect("within");
    volume.close().expect("it closes");
    image.assert_clean();
}

/// As in Linux, seen side by side.
#[test]
fn a_hole_that_ends_behind_the_file_takes_its_last_block() {
    let Some(image) = Image::make(&["-b", "4096"]) else {
        return;
    };
    let volume = image.open();
    // A file of 13,000 bytes, with space behind it or not; a hole; the KiB that are left.
    let cases: [(bool, u64, u64, u64); 9] = [
        (false, 12_288, 713, 12),
        (false, 12_288, 712, 16),
        (false, 12_288, 700, 16),
        (false, 10_000, 5_000, 12),
        (false, 0, 14_000, 0),
        (true, 12_288, 1_024, 60),
        (true, 0, 14_000, 48),
        (true, 13_200, 5_000, 64),
        (true, 20_000, 10_000, 64),
    ];
    for (has_more, offset, length, left) in cases {
        let made = volume.create(InodeNumber::ROOT, b"file", &CreateAttributes::default());
        let file = made.expect("room").inode;
        volume.write(file, 0, &[7; 13_000]).expect("room");
        if has_more {
            let more = volume.allocate(file, AllocateMode::KeepSize, 0, 65_536);
            more.expect("room");
        }
        let hole = volume.allocate(file, AllocateMode::PunchHole, offset, length);
        hole.expect("inside the limits");
        let sectors = volume.attributes(file).expect("held").sectors;
        assert_eq!(sectors / 2, left, "{has_more}, {offset}, {length}");
        let unlinked = volume.unlink(InodeNumber::ROOT, b"file");
        unlinked.expect("it is there");
        volume.forget(file, 1);
    }
    volume.close().expect("it closes");
    image.assert_clean();
}

/// Where clusters have many blocks, the nodes of a worst tree take more space than the data.
#[test]
fn nodes_that_take_clusters_are_counted_as_such() {
    let features = "^huge_file,bigalloc";
    let Some(image) = Image::make(&["-b", "1024", "-C", "262144", "-O", features]) else {
        return;
    };
    let volume = image.open();
    let made = volume.create(InodeNumber::ROOT, b"file", &CreateAttributes::default());
    let file = made.expect("a file").inode;
    let grow = |size| set_size(&volume, file, size);
    // Of 2 TiB a node of 256 KiB for each 84 blocks takes three quarters.
    let refused = grow(520 << 30).expect_err("more than can be counted");
    assert!(refused.is(Refusal::FileTooLarge), "{refused}");
    grow(500 << 30).expect("that can");
}

#[test]
fn a_write_across_the_largest_size_keeps_what_fits() {
    for features in ["^extent,^64bit", "extent"] {
        let Some(image) = Image::make(&["-b", "1024", "-O", features]) else {
            return;
        };
        let volume = image.open();
        let made = volume.create(InodeNumber::ROOT, b"file", &CreateAttributes::default());
        let file = made.expect("a file").inode;
        // With pointers, and with 2^32 - 1 blocks of extents.
        let largest = match features {
            "extent" => u64::from(u32::MAX) * 1024,
            _ => 17_247_252_480,
        };
        let written = volume.write(file, largest - 5000, &[7; 9000]);
        assert_eq!(written.expect("most of it fits"), 5000, "{features}");
        let mut read = [0; 6000];
        let count = volume.read(file, largest - 5000, &mut read);
        assert_eq!(count.expect("it can be read"), 5000);
        assert!(read[..5000].iter().all(|&byte| byte == 7));
        let refused = volume.write(file, largest, &[7]).expect_err("nothing fits");
        assert!(refused.is(Refusal::FileTooLarge), "{refused}");
        assert_eq!(volume.attributes(file).expect("a file").size, largest);
        volume.close().expect("it closes");
        image.assert_clean();
    }
}

#[test]
fn a_file_that_is_larger_than_we_would_make_it_keeps_its_size() {
    let Some(image) = Image::make(&["-b", "1024", "-O", "^huge_file"]) else {
        return;
    };
    let volume = image.open();
    let made = volume.create(InodeNumber::ROOT, b"file", &CreateAttributes::default());
    let file = made.expect("a file").inode;
    volume.close().expect("it closes");
    // As Linux allows: it counts no nodes of the tree.
    let largest = u64::from(u32::MAX) / 2 * 1024;
    image.debugfs_write(&format!("sif /file size {largest}"));
    let volume = image.open();
    let written = volume.write(file, largest - 1000, &[7; 2000]);
    assert_eq!(written.expect("up to its end"), 1000);
    let same = SetAttributes {
        size: Some(largest),
        ..SetAttributes::default()
    };
    volume.set_attributes(file, &same).expect("its own size");
    volume.close().expect("it closes");
    image.assert_clean();
}

#[test]
fn the_last_block_that_a_size_can_reach_is_a_hole_of_a_block_map() {
    let size = 1_u64 << 44;
    let grown = format!("sif file size {size}");
    let Some(image) = Image::with_file(&["-b", "4096", "-O", "^extent,^64bit"], b"x", &[&grown])
    else {
        return;
    };
    let (_, volume) = image.load();
    let file = inode(&volume, "/file");
    let (read, data) = comes_back(move || {
        let mut bytes = [7; 8192];
        let aligned = volume.read(file, size - 4096, &mut bytes);
        let inside = volume.read(file, size - 1, &mut bytes);
        let data = volume.seek_data(file, 4096);
        ((aligned, inside), data)
    });
    assert_eq!(read.0.expect("a hole"), 4096);
    assert_eq!(read.1.expect("a hole"), 1);
    let refused = data.expect_err("there is no more");
    assert!(refused.is(Refusal::NoSuchOffset), "{refused}");
}
