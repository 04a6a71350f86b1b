//! The operations, any two of which commute.

use pext4_fs::{AllocateMode, RenameMode, SetAttributes, SetXattrMode};
use pext4_lab::random::Random;

use crate::side::{NEW, Side, common_name};

/// An operation, and its preparation, which is not recorded.
pub struct Operation {
    pub name: &'static str,
    pub before: fn(&Side),
    pub run: fn(&Side),
}

pub const fn operation(name: &'static str, run: fn(&Side)) -> Operation {
    Operation {
        name,
        before: |_| (),
        run,
    }
}

pub const fn prepared(name: &'static str, before: fn(&Side), run: fn(&Side)) -> Operation {
    Operation { name, before, run }
}

/// Bytes that differ between rounds and between sides.
fn scattered(side: &Side, length: usize) -> Vec<u8> {
    let mut random = Random::new(side.round as u64, u32::try_from(side.number).expect("two"));
    (0..length)
        .flat_map(|_| random.draw().to_le_bytes())
        .collect()
}

/// Operations on a side's own files. Any two of different sides commute.
pub const PRIVATE: &[Operation] = &[
    operation("create", |side| {
        let made = side.volume.create(side.directory, &side.name("new"), &NEW);
        side.volume.forget(made.expect("there is room").inode, 1);
    }),
    prepared(
        "unlink",
        |side| {
            let made = side.volume.create(side.directory, &side.name("gone"), &NEW);
            side.volume.forget(made.expect("there is room").inode, 1);
        },
        |side| {
            let name = side.name("gone");
            side.volume
                .unlink(side.directory, &name)
                .expect("it is there");
        },
    ),
    operation("make a directory", |side| {
        let made = side
            .volume
            .make_directory(side.directory, &side.name("directory"), &NEW);
        side.volume.forget(made.expect("there is room").inode, 1);
    }),
    prepared(
        "remove a directory",
        |side| {
            let name = side.name("empty");
            let made = side.volume.make_directory(side.directory, &name, &NEW);
            side.volume.forget(made.expect("there is room").inode, 1);
        },
        |side| {
            let removed = side
                .volume
                .remove_directory(side.directory, &side.name("empty"));
            removed.expect("it is empty");
        },
    ),
    operation("make a symbolic link", |side| {
        let made = side
            .volume
            .make_symlink(side.directory, &side.name("symbolic"), b"file", &NEW);
        side.volume.forget(made.expect("there is room").inode, 1);
    }),
    operation("make a link", |side| {
        let made = side
            .volume
            .link(side.file, side.directory, &side.name("link"));
        side.volume.forget(made.expect("there is room").inode, 1);
    }),
    prepared(
        "rename within its directory",
        |side| {
            let made = side.volume.create(side.directory, &side.name("old"), &NEW);
            side.volume.forget(made.expect("there is room").inode, 1);
        },
        |side| {
            let (old, new) = (side.name("old"), side.name("moved"));
            let own = side.directory;
            let moved = side
                .volume
                .rename(own, &old, own, &new, RenameMode::Replace);
            moved.expect("it is there");
        },
    ),
    prepared(
        "rename into another directory",
        |side| {
            let made = side.volume.create(side.directory, &side.name("from"), &NEW);
            side.volume.forget(made.expect("there is room").inode, 1);
        },
        |side| {
            let name = side.name("from");
            let (from, to) = (side.directory, side.second);
            let moved = side
                .volume
                .rename(from, &name, to, &name, RenameMode::Replace);
            moved.expect("it is there");
        },
    ),
    operation("lookup", |side| {
        let found = side
            .volume
            .lookup(side.directory, b"file")
            .expect("it is there");
        side.volume.forget(found.inode, 1);
    }),
    operation("stat by path", |side| {
        let path = format!("/own{}/file", side.number);
        let found = side.volume.paths().attributes(path);
        found.expect("it is there");
    }),
    operation("stat", |side| {
        side.volume.attributes(side.file).expect("it is there");
    }),
    operation("list", |side| {
        let listed = side.volume.read_directory(side.second, 0, &mut |_| true);
        listed.expect("it is there");
    }),
    operation("read", |side| {
        side.volume
            .read(side.file, 0, &mut [0; 4096])
            .expect("it is there");
    }),
    operation("overwrite", |side| {
        side.volume
            .write(side.file, 0, &[7; 4096])
            .expect("it is there");
    }),
    prepared(
        "append",
        |side| side.resize(4096 * (side.round as u64 % 3 + 1)),
        |side| {
            let end = 4096 * (side.round as u64 % 3 + 1);
            side.volume
                .write(side.file, end, &[8; 4096])
                .expect("there is room");
        },
    ),
    prepared(
        "allocate",
        |side| side.resize(1 << 20),
        |side| {
            let mode = AllocateMode::Extend;
            let made = side.volume.allocate(side.file, mode, 1 << 20, 32 << 10);
            made.expect("there is room");
        },
    ),
    operation("truncate by a byte", |side| {
        side.resize((1 << 20) - side.round as u64);
    }),
    prepared(
        "truncate blocks away",
        |side| {
            side.resize(4096);
            side.volume
                .write(side.file, 4096, &[9; 16384])
                .expect("there is room");
        },
        |side| side.resize(4096),
    ),
    prepared(
        "write far behind the end",
        |side| side.resize(4096),
        |side| {
            // Beyond the first block of pointers, so that a block map needs two.
            side.volume
                .write(side.file, 8 << 20, &[9; 4096])
                .expect("there is room");
        },
    ),
    prepared(
        "cut off what is far behind",
        |side| {
            side.resize(4096);
            side.volume
                .write(side.file, 8 << 20, &[9; 4096])
                .expect("there is room");
        },
        |side| side.resize(4096),
    ),
    operation("change permissions", |side| {
        let change = SetAttributes {
            permissions: Some(0o600 + (side.round as u16 % 2) * 0o10),
            ..SetAttributes::default()
        };
        side.volume
            .set_attributes(side.file, &change)
            .expect("it can be done");
    }),
    operation("set a small attribute", |side| {
        let value = side.name("value");
        let set = side
            .volume
            .set_xattr(side.file, b"user.small", &value, SetXattrMode::Any);
        set.expect("there is room");
    }),
    operation("set a large attribute", |side| {
        // The format's hash of a value is only rotations and exclusive ors: values of repeated
        // bytes have the same hash.
        let value = scattered(side, 50);
        let set = side
            .volume
            .set_xattr(side.file, b"user.large", &value, SetXattrMode::Any);
        set.expect("there is room");
    }),
    operation("a file without a name, made and given back", |side| {
        let made = side
            .volume
            .create_unnamed(side.directory, &NEW)
            .expect("there is room");
        side.volume.forget(made.inode, 1);
    }),
];

/// Operations in one directory, or on one file, that commute nevertheless.
pub const COMMON: &[Operation] = &[
    operation("look up one name", |side| {
        let found = side
            .volume
            .lookup(side.common, &common_name(0))
            .expect("it is there");
        side.volume.forget(found.inode, 1);
    }),
    operation("look up a name of one's own in one directory", |side| {
        let found = side
            .volume
            .lookup(side.common, &side.common_name())
            .expect("it is there");
        side.volume.forget(found.inode, 1);
    }),
    operation("stat one file by path", |side| {
        let path = [b"/common/".as_slice(), &common_name(0)].concat();
        side.volume.paths().attributes(path).expect("it is there");
    }),
    operation("stat one file", |side| {
        side.volume
            .attributes(side.common_file)
            .expect("it is there");
    }),
    operation("read one file", |side| {
        side.volume
            .read(side.common_file, 0, &mut [0; 4096])
            .expect("it is there");
    }),
    operation("set an attribute that others have", |side| {
        // Each round takes one of two blocks and leaves the other.
        let value = [b'a' + (side.round % 2) as u8; 300];
        let set = side
            .volume
            .set_xattr(side.file, b"user.common", &value, SetXattrMode::Any);
        set.expect("there is room");
    }),
    operation("create in one directory", |side| {
        let made = side.volume.create(side.common, &side.name("new"), &NEW);
        side.volume.forget(made.expect("there is room").inode, 1);
    }),
    prepared(
        "unlink in one directory",
        |side| {
            let made = side.volume.create(side.common, &side.name("gone"), &NEW);
            side.volume.forget(made.expect("there is room").inode, 1);
        },
        |side| {
            side.volume
                .unlink(side.common, &side.name("gone"))
                .expect("it is there");
        },
    ),
    operation("make a symbolic link in one directory", |side| {
        let made = side
            .volume
            .make_symlink(side.common, &side.name("symbolic"), b"file", &NEW);
        side.volume.forget(made.expect("there is room").inode, 1);
    }),
    operation("make a link in one directory", |side| {
        let made = side.volume.link(side.file, side.common, &side.name("link"));
        side.volume.forget(made.expect("there is room").inode, 1);
    }),
];
