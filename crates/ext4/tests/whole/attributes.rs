//! Extended attributes on whole images: against a plain map, with inodes of both sizes, and in
//! blocks that inodes share, as Linux leaves them.

use std::collections::BTreeMap;

use fastrand::Rng;
use pext4_fs::{
    Acls, CreateAttributes, DeviceNumber, FileType, InodeNumber, Refusal, SetAttributes, SetTime,
    SetXattrMode, Time, Volume,
};
use pext4_ondisk::BlockNumber;
use pext4_ondisk::acl::{self, Entry};
use pext4_ondisk::superblock::Superblock;
use pext4_ondisk::xattr;

use crate::images::Image;

const KINDS: [&[&str]; 4] = [
    &[],
    &["-b", "1024", "-I", "256"],
    &["-b", "1024", "-I", "128", "-O", "^metadata_csum"],
    &["-b", "2048", "-I", "512", "-O", "^has_journal"],
];

type Values = BTreeMap<Vec<u8>, Vec<u8>>;

fn inode_of(volume: &Volume, path: &str) -> InodeNumber {
    volume.paths().attributes(path).expect("the file").inode
}

fn assert_holds(volume: &Volume, inode: InodeNumber, expected: &Values) {
    let names = volume.xattr_names(inode).expect("a list");
    assert_eq!(names.len(), expected.len());
    for (name, value) in expected {
        assert_eq!(&volume.xattr(inode, name).expect("a value"), value);
    }
    let all = volume.xattrs(inode).expect("a list");
    assert_eq!(all.len(), expected.len());
    assert_eq!(Values::from_iter(all), *expected);
}

fn change(random: &mut Rng, volume: &Volume, inode: InodeNumber, expected: &mut Values) {
    let prefix = [&b"user."[..], b"trusted.", b"security."][random.u64(..3) as usize];
    let letter = b'a' + u8::try_from(random.u64(..6)).expect("small");
    let name = [prefix, &vec![letter; 1 + random.u64(..20) as usize]].concat();
    if random.u64(..3) == 0 {
        let removed = volume.remove_xattr(inode, &name);
        assert_eq!(removed.is_ok(), expected.remove(&name).is_some());
        return;
    }
    let most = if random.u64(..2) == 0 { 20 } else { 700 };
    let value = vec![letter; random.u64(..most) as usize];
    match volume.set_xattr(inode, &name, &value, SetXattrMode::Any) {
        Ok(()) => drop(expected.insert(name, value)),
        Err(error) => assert!(error.is(Refusal::AttributesFull), "{error}"),
    }
}

/// An access list with this many named users, in the on-disk format.
fn list_of(users: u32) -> Vec<u8> {
    let entry = |tag, id| Entry {
        tag,
        permissions: 5,
        id,
    };
    let named = (0..users).map(|user| entry(acl::USER, 1000 + user));
    let others = [acl::GROUP_OBJECT, acl::MASK, acl::OTHER].map(|tag| entry(tag, acl::NO_ID));
    let entries: Vec<Entry> = std::iter::once(entry(acl::USER_OBJECT, acl::NO_ID))
        .chain(named)
        .chain(others)
        .collect();
    acl::encode(&entries)
}

#[test]
fn access_lists_come_with_the_name_or_not_at_all() {
    for arguments in KINDS {
        let Some(image) = Image::make(arguments) else {
            return;
        };
        let volume = image.open();
        let root = InodeNumber::ROOT;
        let handles = || volume.report().get("journal", "handles").unwrap_or(0);
        let (access, default) = (list_of(1), list_of(8));
        let acls = Acls {
            access: Some(&access),
            default: Some(&default),
        };
        let make = |name: &[u8], kind, acls: &Acls<'_>| {
            let new = CreateAttributes::default();
            volume.make_with_acls(root, name, &new, kind, DeviceNumber::default(), acls)
        };
        let before = handles();
        let made = make(b"directory", FileType::Directory, &acls).expect("room");
        assert!(handles() <= before + 1, "one transaction");
        let list = |name| volume.xattr(made.inode, name).expect("it has it");
        assert_eq!(
            (list(acl::ACCESS), list(acl::DEFAULT)),
            (access.clone(), default.clone())
        );
        let _ = make(
            b"fifo",
            FileType::Fifo,
            &Acls {
                default: None,
                ..acls
            },
        )
        .expect("room");

        let free = || {
            let told = volume.statfs();
            (told.free_blocks, told.free_inodes)
        };
        let free_before = free();
        let too_long = list_of(4096 / 8);
        for kind in [FileType::Directory, FileType::Regular] {
            let acls = Acls {
                default: Some(&too_long),
                ..acls
            };
            let refused = make(b"refused", kind, &acls).expect_err("it fits nowhere");
            assert!(refused.is(Refusal::AttributesFull), "{refused}");
            let found = volume.lookup(root, b"refused");
            assert!(found.expect_err("it is not there").is(Refusal::NotFound));
        }
        volume.sync().expect("the device works");
        assert_eq!(free(), free_before);
        let linked = make(b"link", FileType::Symlink, &acls);
        assert!(linked.expect_err("a link has none").is(Refusal::Invalid));
        volume.close().expect("a clean close");
        image.assert_clean();
    }
}

#[test]
fn setting_the_current_value_changes_nothing() {
    let Some(image) = Image::make(&["-b", "4096"]) else {
        return;
    };
    let volume = image.open();
    volume.paths().write("/file", b"").expect("room");
    let inode = inode_of(&volume, "/file");
    let long_ago = Time {
        seconds: 5,
        nanoseconds: 0,
    };
    let change = SetAttributes {
        changed: Some(SetTime::To(long_ago)),
        ..SetAttributes::default()
    };
    let changed = || volume.attributes(inode).expect("it is there").changed;
    // In the inode, and in a block.
    for length in [10, 3000] {
        let value = vec![b'v'; length];
        let set = |value: &[u8], mode| volume.set_xattr(inode, b"user.name", value, mode);
        set(&value, SetXattrMode::Any).expect("room");
        volume.set_attributes(inode, &change).expect("a time");
        for mode in [SetXattrMode::Any, SetXattrMode::Replace] {
            set(&value, mode).expect("it has it");
        }
        let exists = set(&value, SetXattrMode::Create).expect_err("it is there");
        assert!(exists.is(Refusal::Exists), "{exists}");
        assert_eq!(changed(), long_ago);
        set(b"another", SetXattrMode::Replace).expect("room");
        assert_ne!(changed(), long_ago);
    }
    volume.close().expect("a clean close");
    image.assert_clean();
}

#[test]
fn attributes_agree_with_a_plain_map() {
    for (kind, arguments) in (1..).zip(KINDS) {
        let Some(image) = Image::make(arguments) else {
            return;
        };
        println!("seed {kind}, {arguments:?}");
        let mut random = Rng::with_seed(kind);
        let volume = image.open();
        let mut files = Vec::new();
        for number in 0..6 {
            let path = format!("/file{number}");
            volume.paths().write(&path, b"content").expect("a file");
            files.push((inode_of(&volume, &path), Values::new()));
        }
        for _ in 0..600 {
            let pick = random.u64(..6) as usize;
            let (inode, expected) = &mut files[pick];
            change(&mut random, &volume, *inode, expected);
        }
        for (inode, expected) in &files {
            assert_holds(&volume, *inode, expected);
        }
        volume.close().expect("a clean close");
        image.assert_clean();
        let volume = image.open();
        for (inode, expected) in &files {
            assert_holds(&volume, *inode, expected);
        }
        for number in 0..6 {
            volume
                .paths()
                .remove_file(format!("/file{number}"))
                .expect("a file");
        }
        volume.close().expect("a clean close");
        image.assert_clean();
    }
}

/// Makes `/b` and `/c` share the attribute block of `/a`, as Linux does with equal attributes.
fn share_block(image: &Image) {
    let stat = image.debugfs("stat /a");
    let (_, rest) = stat
        .split_once("File ACL: ")
        .expect("a block of attributes");
    let block: u64 = rest
        .split_whitespace()
        .next()
        .expect("its number")
        .parse()
        .expect("a number");
    for file in ["/b", "/c"] {
        image.debugfs_write(&format!("set_inode_field {file} file_acl {block}"));
        image.debugfs_write(&format!("set_inode_field {file} blocks 2"));
    }
    let mut bytes = std::fs::read(&image.path).expect("the image");
    let superblock = Superblock::decode(bytes[1024..2048].try_into().expect("1 KiB"));
    let seed = superblock.expect("sound").metadata_checksum_seed();
    let start = usize::try_from(block).expect("small") * 1024;
    let content = &mut bytes[start..start + 1024];
    xattr::set_references(content, 3);
    xattr::stamp_block(seed, BlockNumber(block), content);
    std::fs::write(&image.path, bytes).expect("the image");
}

#[test]
fn shared_blocks_are_left_to_the_others() {
    let Some(image) = Image::make(&["-b", "1024", "-I", "256"]) else {
        return;
    };
    let value = vec![5; 300];
    let volume = image.open();
    for path in ["/a", "/b", "/c"] {
        volume.paths().write(path, b"").expect("a file");
    }
    let [a, b, c] = ["/a", "/b", "/c"].map(|path| inode_of(&volume, path));
    volume
        .set_xattr(a, b"user.large", &value, SetXattrMode::Create)
        .expect("it fits");
    volume.close().expect("a clean close");
    share_block(&image);
    image.assert_clean();

    let volume = image.open();
    let new = vec![6; 400];
    volume
        .set_xattr(b, b"user.large", &new, SetXattrMode::Replace)
        .expect("in its own block");
    assert_eq!(volume.xattr(a, b"user.large").expect("untouched"), value);
    assert_eq!(volume.xattr(c, b"user.large").expect("untouched"), value);
    assert_eq!(volume.xattr(b, b"user.large").expect("changed"), new);
    volume.paths().remove_file("/c").expect("a file");
    volume
        .set_xattr(a, b"user.more", &new, SetXattrMode::Create)
        .expect("the only owner now");
    volume.close().expect("a clean close");
    image.assert_clean();

    let volume = image.open();
    assert_eq!(volume.xattr(a, b"user.large").expect("kept"), value);
    assert_eq!(volume.xattr(a, b"user.more").expect("kept"), new);
    volume.remove_xattr(a, b"user.large").expect("there");
    volume.remove_xattr(a, b"user.more").expect("there");
    assert_eq!(
        volume.attributes(a).expect("an inode").sectors,
        0,
        "its block is freed"
    );
    volume.close().expect("a clean close");
    image.assert_clean();
}

#[test]
fn debugfs_reads_what_was_written() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let volume = image.open();
    volume.paths().write("/a", b"").expect("a file");
    let inode = inode_of(&volume, "/a");
    volume
        .set_xattr(inode, b"user.small", b"in the inode", SetXattrMode::Any)
        .expect("it fits");
    let large = b"0123456789".repeat(30);
    volume
        .set_xattr(inode, b"trusted.large", &large, SetXattrMode::Any)
        .expect("it fits");
    volume.close().expect("a clean close");
    image.assert_clean();
    assert!(
        image
            .debugfs("ea_get /a user.small")
            .contains("in the inode")
    );
    let told = image.debugfs("ea_list /a");
    assert!(told.contains("trusted.large (300)"), "{told}");
}

#[test]
fn invalid_names_are_refused() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let volume = image.open();
    volume.paths().write("/a", b"").expect("a file");
    volume.paths().symlink("a", "/link").expect("a link");
    let inode = inode_of(&volume, "/a");
    let set = |name: &[u8], value: &[u8]| {
        volume
            .set_xattr(inode, name, value, SetXattrMode::Any)
            .expect_err("refused")
    };
    assert!(set(b"user.", b"").is(Refusal::Invalid));
    assert!(set(b"nobody.x", b"").is(Refusal::NotSupported));
    assert!(set(b"system.data", b"").is(Refusal::NotSupported));
    assert!(set(b"system.", b"").is(Refusal::NotSupported));
    assert!(set(&[&b"user."[..], &[b'x'; 251]].concat(), b"").is(Refusal::Range));
    assert!(set(b"user.x", &[0; 65537]).is(Refusal::TooBig));
    assert!(set(b"user.x", &[0; 65536]).is(Refusal::AttributesFull));
    let link = volume
        .paths()
        .link_attributes("/link")
        .expect("the link")
        .inode;
    let refused = volume
        .set_xattr(link, b"user.x", b"", SetXattrMode::Any)
        .expect_err("a link");
    assert!(refused.is(Refusal::NotPermitted));
    volume
        .set_xattr(link, b"trusted.x", b"", SetXattrMode::Any)
        .expect("links have others");
    let longest = [&b"user."[..], &[b'x'; 250]].concat();
    volume
        .set_xattr(inode, &longest, b"", SetXattrMode::Any)
        .expect("255 bytes");
    volume.close().expect("a clean close");
    image.assert_clean();
}

/// The kernel would let nobody but root use the file.
#[test]
fn a_list_that_nobody_could_read_is_refused() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let volume = image.open();
    let paths = volume.paths();
    paths.write("/file", "").expect("room");
    paths.create_dir("/directory").expect("room");
    paths.symlink("file", "/link").expect("room");
    let stored = list_of(3);
    let of_call = acl::stored_to_call(&stored).expect("sound");
    let set = |path: &str, name: &[u8], list: &[u8]| {
        let inode = paths.resolve_link(path).expect("there").inode();
        volume.set_xattr(inode, name, list, SetXattrMode::Any)
    };
    for (path, name, list) in [
        ("/file", acl::ACCESS, &of_call[..]),
        ("/file", acl::ACCESS, b"junk"),
        ("/directory", acl::DEFAULT, b""),
        ("/file", acl::DEFAULT, &stored),
        ("/link", acl::ACCESS, &stored),
    ] {
        let error = set(path, name, list).expect_err("no such list");
        assert!(error.is(Refusal::Invalid), "{path}: {error}");
    }
    set("/file", acl::ACCESS, &stored).expect("sound");
    set("/directory", acl::DEFAULT, &stored).expect("sound");
    volume.close().expect("a clean close");
    image.assert_clean();
}

#[test]
fn a_list_without_room_leaves_the_permissions() {
    let Some(image) = Image::make(&["-b", "4096", "-I", "256"]) else {
        return;
    };
    let volume = image.open();
    let new = CreateAttributes {
        permissions: 0o600,
        ..CreateAttributes::default()
    };
    let made = volume.create(InodeNumber::ROOT, b"file", &new);
    let file = made.expect("a file").inode;
    let mode = || volume.attributes(file).expect("there").mode & 0o7777;
    let set = |name: &[u8], length| {
        let value = vec![7; length];
        volume.set_xattr(file, name, &value, SetXattrMode::Any)
    };
    set(b"user.b", 60).expect("room in the inode");
    set(b"user.a", 3980).expect("room in the block");
    let list = list_of(20);
    let full = volume
        .set_access_list(file, &list, SetXattrMode::Any, 0o670)
        .expect_err("no room anywhere");
    assert!(full.is(Refusal::AttributesFull), "{full}");
    assert_eq!(mode(), 0o600);
    volume.remove_xattr(file, b"user.a").expect("removed");
    volume
        .set_access_list(file, &list, SetXattrMode::Any, 0o670)
        .expect("room");
    assert_eq!(volume.xattr(file, acl::ACCESS).expect("a list"), list);
    assert_eq!(mode(), 0o670);
    for _ in 0..2 {
        // The second time there is none to remove.
        volume.remove_access_list(file, 0o640).expect("removed");
        assert_eq!(mode(), 0o640);
        assert!(volume.xattr(file, acl::ACCESS).is_err());
    }
    volume.close().expect("it closes");
    image.assert_clean();
}

/// An image where both places of a file's attributes have `user.twice`: no program leaves that.
#[test]
fn a_name_in_the_inode_hides_the_same_in_the_block() {
    let arguments = ["-b", "1024", "-I", "256", "-O", "^metadata_csum,^ea_inode"];
    let Some(image) = Image::with_file(&arguments, b"x", &[]) else {
        return;
    };
    let volume = image.open();
    let file = inode_of(&volume, "/file");
    let set = |name: &[u8], value: &[u8]| {
        let set = volume.set_xattr(file, name, value, SetXattrMode::Any);
        set.expect("there is room");
    };
    set(b"user.twice", b"in the inode");
    set(b"user.other", &[b'o'; 300]);
    volume.close().expect("it closes");
    image.change(|bytes| {
        let starts = (0..bytes.len()).step_by(1024);
        let mut blocks = starts.filter(|&at| xattr::references(&bytes[at..at + 1024]).is_ok());
        let at = blocks.next().expect("a block of attributes");
        let list = &mut bytes[at..at + 1024];
        let mut block = xattr::Block::decode(list).expect("sound");
        let hidden = xattr::Attribute::new(1, b"twice", b"in the block");
        block.attributes.push(hidden);
        block.encode(list).expect("it fits");
    });
    let volume = image.open();
    let mut names = volume.xattr_names(file).expect("a list");
    names.sort_unstable();
    assert_eq!(names, [&b"user.other"[..], b"user.twice"]);
    let value = volume.xattr(file, b"user.twice").expect("a value");
    assert_eq!(value, b"in the inode");
    let all = volume.xattrs(file).expect("a list");
    assert_eq!(all.len(), 2);
    assert!(all.contains(&(b"user.twice".to_vec(), value)));
    let set = volume.set_xattr(file, b"user.twice", b"once", SetXattrMode::Any);
    set.expect("there is room");
    volume
        .remove_xattr(file, b"user.twice")
        .expect("it is there");
    assert!(volume.xattr(file, b"user.twice").is_err(), "both are gone");
    volume.close().expect("it closes");
    image.assert_clean();
}
