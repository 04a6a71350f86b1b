//! Files and directories whose map changes between extents and pointers (`chattr +e` and `-e`).

use pext4_fs::{CreateAttributes, Error, InodeNumber, Refusal, SetAttributes, Volume};

use crate::images::Image;

const ROOT: InodeNumber = InodeNumber::ROOT;

const EXTENTS: u32 = 0x8_0000;

fn file(volume: &Volume, name: &[u8]) -> InodeNumber {
    let made = volume.create(ROOT, name, &CreateAttributes::default());
    made.expect("room for a file").inode
}

fn set_flags(volume: &Volume, inode: InodeNumber, flags: u32) -> Result<u32, Error> {
    let change = SetAttributes {
        flags: Some(flags),
        ..SetAttributes::default()
    };
    let set = volume.set_attributes(inode, &change)?;
    Ok(set.flags)
}

/// `chattr +e` as on Linux.
#[test]
fn no_file_gets_a_tree_where_the_file_system_has_none() {
    let Some(image) = Image::make(&["-O", "^extents,^64bit"]) else {
        return;
    };
    let volume = image.open();
    let inode = file(&volume, b"file");
    let error = set_flags(&volume, inode, EXTENTS).expect_err("they have no meaning here");
    assert!(error.is(Refusal::Invalid), "{error}");
}

/// `chattr -e` as on Linux: a map that fits the inode with pointers changes its form.
#[test]
fn a_small_map_takes_the_other_form_and_a_large_one_does_not() {
    let Some(image) = Image::make(&["-b", "1024"]) else {
        return;
    };
    let volume = image.open();
    let written = |name: &[u8], at: &[u64]| {
        let inode = file(&volume, name);
        for block in at {
            let content = [u8::try_from(*block).expect("small"); 1024];
            volume.write(inode, block * 1024, &content).expect("room");
        }
        inode
    };
    let changing = [
        written(b"empty", &[]),
        written(b"twelve", &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]),
        written(b"behind a hole", &[5]),
    ];
    let content = |inode| {
        let mut bytes = vec![0; 12 << 10];
        let length = volume.read(inode, 0, &mut bytes).expect("it is there");
        bytes.truncate(length);
        bytes
    };
    for inode in changing {
        let before = content(inode);
        assert_eq!(set_flags(&volume, inode, 0).expect("pointers"), 0);
        assert_eq!(content(inode), before);
    }
    let staying = [
        written(b"thirteen", &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]),
        written(b"beyond the direct ones", &[12]),
        written(b"in two runs", &[0, 5]),
    ];
    for inode in staying {
        let error = set_flags(&volume, inode, 0).expect_err("it does not fit");
        assert!(error.is(Refusal::NotSupported), "{error}");
    }
    // It grows with pointers: now in two runs, which fit a tree as well.
    volume.write(changing[2], 0, &[7; 1024]).expect("room");
    for inode in changing {
        let before = content(inode);
        assert_eq!(set_flags(&volume, inode, EXTENTS).expect("a tree"), EXTENTS);
        assert_eq!(content(inode), before);
        volume.write(inode, 20 << 10, b"more").expect("room");
    }
    let directory = volume.make_directory(ROOT, b"directory", &CreateAttributes::default());
    let directory = directory.expect("room").inode;
    set_flags(&volume, directory, 0).expect("pointers");
    for number in 0..100 {
        let name = format!("a name of some length, number {number}");
        let made = volume.create(directory, name.as_bytes(), &CreateAttributes::default());
        volume.forget(made.expect("room").inode, 1);
    }
    volume.close().expect("a clean close");
    image.assert_clean();
}

/// Pointer blocks of one and two levels go, and nodes come where the extents need them.
#[test]
fn a_map_with_pointer_blocks_becomes_a_tree() {
    let Some(image) = Image::make(&["-b", "1024"]) else {
        return;
    };
    let volume = image.open();
    let blocks: [(&[u8], Vec<u64>); 3] = [
        (b"in one run", (0..400).collect()),
        (b"in pieces", (0..400).step_by(2).collect()),
        (b"far apart", vec![3, 100, 300, 5000, 70_000]),
    ];
    let block = |number: u64| number.to_le_bytes().repeat(128);
    let free = || volume.statfs().free_blocks;
    for (name, at) in &blocks {
        let inode = file(&volume, name);
        set_flags(&volume, inode, 0).expect("pointers");
        let empty = free();
        for &number in at {
            let written = volume.write(inode, number * 1024, &block(number));
            written.expect("room");
        }
        assert_eq!(set_flags(&volume, inode, EXTENTS).expect("a tree"), EXTENTS);
        volume.sync().expect("what was freed is free");
        for &number in at {
            let mut bytes = vec![0; 1024];
            let read = volume.read(inode, number * 1024, &mut bytes);
            read.expect("it is there");
            assert_eq!(bytes, block(number), "block {number}");
        }
        let sectors = volume.attributes(inode).expect("it is there").sectors;
        assert_eq!(sectors / 2, empty - free(), "all of it is the file's");
        let data = at.len() as u64;
        assert!(sectors / 2 <= data + data.div_ceil(80), "{sectors}");
        volume.write(inode, 50 << 10, b"more").expect("room");
    }
    let directory = volume.make_directory(ROOT, b"directory", &CreateAttributes::default());
    let directory = directory.expect("room").inode;
    set_flags(&volume, directory, 0).expect("pointers");
    let name =
        |number: u32| format!("a name that is long enough to fill some blocks {number:0100}");
    for number in 0..300 {
        let made = volume.create(
            directory,
            name(number).as_bytes(),
            &CreateAttributes::default(),
        );
        volume.forget(made.expect("room").inode, 1);
    }
    set_flags(&volume, directory, EXTENTS).expect("a tree");
    for number in 0..300 {
        let found = volume.lookup(directory, name(number).as_bytes());
        volume.forget(found.expect("it is there").inode, 1);
    }
    volume.close().expect("a clean close");
    image.assert_clean();
}
