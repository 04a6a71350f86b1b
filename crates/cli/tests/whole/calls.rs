//! System calls on a mount: their guarantees, and the parts that the kernel leaves to the server.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, IFlags, Mode, RenameFlags, SeekFrom, Timespec,
    Timestamps, XattrFlags, fallocate, ioctl_getflags, ioctl_setflags, mknodat, renameat_with,
    seek, utimensat,
};
use rustix::io::Errno;

use crate::common::{Place, has, is_root, pext4, succeed};

/// Runs a shell line as another user.
fn as_user(line: &str, directory: &Path) -> bool {
    let mut shell = Command::new("sh");
    shell
        .args(["-c", line])
        .current_dir(directory)
        .uid(1000)
        .gid(1000);
    let output = shell.output().expect("sh can be started");
    eprintln!("{line}: {}", String::from_utf8_lossy(&output.stderr));
    output.status.success()
}

fn allow_all(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("it is ours");
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).expect("it is there").mode() & 0o7777
}

#[test]
fn opening_truncates_appends_and_excludes() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    let mount = place.mount(&[]);
    let path = mount.path("file");
    fs::write(&path, b"a long content").unwrap();
    fs::write(&path, b"short").unwrap();
    OpenOptions::new()
        .append(true)
        .open(&path)
        .unwrap()
        .write_all(b"er")
        .unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"shorter");
    let refused = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&path)
        .unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::AlreadyExists);
    let unwritable = mount.path("unwritable from the start");
    let mut options = OpenOptions::new();
    std::os::unix::fs::OpenOptionsExt::mode(options.write(true).create_new(true), 0o444);
    options.open(&unwritable).unwrap().write_all(b"1").unwrap();
    assert_eq!(
        (fs::read(&unwritable).unwrap(), mode(&unwritable)),
        (b"1".to_vec(), 0o444)
    );
    mount.unmount();
    let mount = place.mount(&[]);
    assert_eq!(fs::read(mount.path("file")).unwrap(), b"shorter");
    mount.unmount();
}

#[test]
fn names_that_do_not_exist_are_remembered_only_until_they_do() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    let mount = place.mount(&[]);
    let path = mount.path("name");
    for _ in 0..3 {
        assert_eq!(fs::metadata(&path).unwrap_err().kind(), ErrorKind::NotFound);
        fs::write(&path, b"").unwrap();
        fs::metadata(&path).unwrap();
        fs::rename(&path, mount.path("other")).unwrap();
        assert!(!path.exists());
        fs::hard_link(mount.path("other"), &path).unwrap();
        assert!(path.exists());
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        fs::remove_dir(&path).unwrap();
    }
    let long = mount.path("x".repeat(256));
    assert_eq!(File::create(long).unwrap_err().raw_os_error(), Some(36));
    mount.unmount();
}

#[test]
fn renames_replace_refuse_and_exchange() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    let mount = place.mount(&[]);
    let (a, b) = (mount.path("a"), mount.path("b"));
    fs::write(&a, b"1").unwrap();
    fs::write(&b, b"2").unwrap();
    let rename = |flags| renameat_with(CWD, &a, CWD, &b, flags);
    assert_eq!(rename(RenameFlags::NOREPLACE), Err(Errno::EXIST));
    rename(RenameFlags::EXCHANGE).unwrap();
    assert_eq!(
        (fs::read(&a).unwrap(), fs::read(&b).unwrap()),
        (b"2".to_vec(), b"1".to_vec())
    );
    let both = RenameFlags::WHITEOUT | RenameFlags::EXCHANGE;
    assert_eq!(rename(both), Err(Errno::INVAL));
    rename(RenameFlags::empty()).unwrap();
    assert!(!a.exists());
    assert_eq!(fs::read(&b).unwrap(), b"2");
    fs::create_dir_all(mount.path("directory/inner")).unwrap();
    let into_itself = fs::rename(mount.path("directory"), mount.path("directory/inner/x"));
    assert_eq!(into_itself.unwrap_err().raw_os_error(), Some(22));
    mount.unmount();
}

#[test]
fn directories_of_thousands_are_listed_whole_and_emptied() {
    const NAMES: usize = 3000;
    let Some(place) = Place::new("64M") else {
        return;
    };
    let mount = place.mount(&[]);
    let directory = mount.path("directory");
    fs::create_dir(&directory).unwrap();
    for number in 0..NAMES {
        File::create(directory.join(format!("a rather long name with number {number}"))).unwrap();
    }
    mount.unmount();
    let mount = place.mount(&[]);
    let mut names: Vec<_> = fs::read_dir(&directory)
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            assert!(entry.file_type().unwrap().is_file());
            assert_eq!(entry.metadata().unwrap().len(), 0);
            entry.file_name()
        })
        .collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), NAMES);
    assert_eq!(
        fs::read_dir(&directory).unwrap().count(),
        NAMES,
        "a second time, from memory"
    );
    fs::remove_dir_all(&directory).unwrap();
    mount.unmount();
}

#[test]
fn holes_are_found_made_and_zeroed() {
    const MIB: u64 = 1 << 20;
    let Some(place) = Place::new("64M") else {
        return;
    };
    let mount = place.mount(&[]);
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(mount.path("sparse"))
        .unwrap();
    file.write_all_at(&[1; 65536], 0).unwrap();
    file.write_all_at(&[2; 65536], 4 * MIB).unwrap();
    // Data that the kernel has not written yet counts as data.
    assert_eq!(seek(&file, SeekFrom::Data(65536)), Ok(4 * MIB));
    file.sync_all().unwrap();
    assert_eq!(seek(&file, SeekFrom::Hole(0)), Ok(65536));
    assert_eq!(seek(&file, SeekFrom::Data(65536)), Ok(4 * MIB));
    assert_eq!(seek(&file, SeekFrom::Data(5 * MIB)), Err(Errno::NXIO));
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&file, punch, 4096, 8192).unwrap();
    assert_eq!(seek(&file, SeekFrom::Hole(0)), Ok(4096));
    let mut bytes = [7; 16384];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes[..4096] == [1; 4096] && bytes[4096..12288] == [0; 8192]);
    assert!(bytes[12288..] == [1; 4096]);
    let sectors = file.metadata().unwrap().blocks();
    fallocate(&file, FallocateFlags::KEEP_SIZE, 8 * MIB, MIB).unwrap();
    let after = file.metadata().unwrap();
    assert_eq!(after.len(), 4 * MIB + 65536);
    assert!(after.blocks() >= sectors + MIB / 512);
    fallocate(&file, FallocateFlags::empty(), 0, 10 * MIB).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 10 * MIB);
    drop(file);
    mount.unmount();
}

#[test]
fn a_file_that_was_cut_and_extended_reads_zeroes() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    let mount = place.mount(&[]);
    let path = mount.path("file");
    fs::write(&path, [8; 10_000]).unwrap();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(5_000).unwrap();
    file.set_len(20_000).unwrap();
    drop(file);
    mount.unmount();
    let mount = place.mount(&[]);
    let bytes = fs::read(mount.path("file")).unwrap();
    assert_eq!(bytes.len(), 20_000);
    assert!(bytes[..5_000] == [8; 5_000] && bytes[5_000..] == [0; 15_000]);
    mount.unmount();
}

#[test]
fn special_files_keep_their_kind_and_number() {
    if !is_root() {
        return;
    }
    let Some(place) = Place::new("16M") else {
        return;
    };
    let mount = place.mount(&["-o", "dev"]);
    let device = rustix::fs::makedev(1, 0x1_0003);
    let rw = Mode::from_raw_mode(0o640);
    mknodat(
        CWD,
        mount.path("device"),
        FileType::CharacterDevice,
        rw,
        device,
    )
    .unwrap();
    mknodat(CWD, mount.path("fifo"), FileType::Fifo, rw, 0).unwrap();
    mknodat(CWD, mount.path("socket"), FileType::Socket, rw, 0).unwrap();
    symlink("somewhere/else", mount.path("link")).unwrap();
    mount.unmount();
    let mount = place.mount(&[]);
    let look = |name| fs::symlink_metadata(mount.path(name)).unwrap();
    assert!(look("device").file_type().is_char_device());
    assert_eq!(look("device").rdev(), device);
    assert!(look("fifo").file_type().is_fifo());
    assert!(look("socket").file_type().is_socket());
    assert_eq!(
        fs::read_link(mount.path("link")).unwrap(),
        Path::new("somewhere/else")
    );
    mount.unmount();
}

#[test]
fn times_reach_before_1970_and_past_2038() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    let mount = place.mount(&[]);
    let path = mount.path("file");
    fs::write(&path, b"").unwrap();
    let early = Timespec {
        tv_sec: -1_000_000_000,
        tv_nsec: 999_999_999,
    };
    let late = Timespec {
        tv_sec: 10_000_000_000,
        tv_nsec: 1,
    };
    let times = Timestamps {
        last_access: early,
        last_modification: late,
    };
    utimensat(CWD, &path, &times, AtFlags::empty()).unwrap();
    let check = |path: &Path| {
        let told = fs::metadata(path).unwrap();
        assert_eq!(
            (told.atime(), told.atime_nsec()),
            (early.tv_sec, early.tv_nsec)
        );
        assert_eq!(
            (told.mtime(), told.mtime_nsec()),
            (late.tv_sec, late.tv_nsec)
        );
    };
    check(&path);
    mount.unmount();
    let mount = place.mount(&[]);
    check(&path);
    mount.unmount();
}

/// As on Linux. While the kernel caches a regular file, it keeps the modification time that was
/// set.
#[test]
fn times_beyond_the_format_become_its_ends() {
    const FIRST: i64 = -(1 << 31);
    const LAST: i64 = (1 << 34) - (1 << 31) - 1;
    let Some(place) = Place::new("16M") else {
        return;
    };
    let mount = place.mount(&[]);
    let (file, directory) = (mount.path("file"), mount.path("directory"));
    fs::write(&file, b"").unwrap();
    fs::create_dir(&directory).unwrap();
    let beyond = |tv_sec| Timespec { tv_sec, tv_nsec: 7 };
    let times = Timestamps {
        last_access: beyond(-5_364_662_400),
        last_modification: beyond(16_725_225_600),
    };
    for path in [&file, &directory] {
        utimensat(CWD, path, &times, AtFlags::empty()).unwrap();
        let told = fs::metadata(path).unwrap();
        assert_eq!((told.atime(), told.atime_nsec()), (FIRST, 0));
    }
    let check = |path: &Path| {
        let told = fs::metadata(path).unwrap();
        assert_eq!((told.mtime(), told.mtime_nsec()), (LAST, 0), "{path:?}");
    };
    check(&directory);
    mount.unmount();
    let mount = place.mount(&[]);
    check(&file);
    check(&directory);
    mount.unmount();
}

#[test]
fn a_change_of_attributes_or_flags_is_seen_in_the_time_of_the_change() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    let mount = place.mount(&[]);
    // Of a regular file the kernel itself keeps the time, and does not count a change of flags.
    let path = mount.path("directory");
    fs::create_dir(&path).unwrap();
    let directory = File::open(&path).unwrap();
    let changed = || {
        let told = fs::metadata(&path).unwrap();
        (told.ctime(), told.ctime_nsec())
    };
    // Again and again, since a clock that ticks slowly may show the same time.
    let is_seen = |change: &dyn Fn()| {
        let before = changed();
        (0..500).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(2));
            change();
            changed() > before
        })
    };
    let name = "user.name";
    // Another value each time: the one that it has changes nothing.
    let times = std::cell::Cell::new(0_u32);
    assert!(is_seen(&|| {
        times.set(times.get() + 1);
        let value = times.get().to_le_bytes();
        rustix::fs::setxattr(&path, name, &value, XattrFlags::empty()).unwrap();
    }));
    assert!(is_seen(&|| {
        let flags = ioctl_getflags(&directory).unwrap();
        ioctl_setflags(&directory, flags ^ IFlags::NODUMP).unwrap();
    }));
    assert!(is_seen(&|| {
        rustix::fs::setxattr(&path, name, b"value", XattrFlags::empty()).unwrap();
        rustix::fs::removexattr(&path, name).unwrap();
    }));
    drop(directory);
    mount.unmount();
}

#[test]
fn the_label_can_be_read_and_changed() {
    if !is_root() || !has("xfs_io") {
        return;
    }
    let Some(place) = Place::new("16M") else {
        return;
    };
    let mount = place.mount(&[]);
    let label = |words: &str| {
        let mut command = Command::new("xfs_io");
        succeed(command.args(["-c", words]).arg(&place.point))
    };
    assert_eq!(label("label"), "label = \"\"\n");
    assert_eq!(
        label("label -s sixteen-letters!"),
        "label = \"sixteen-letters!\"\n"
    );
    assert_eq!(label("label"), "label = \"sixteen-letters!\"\n");
    mount.unmount();
    let info = succeed(pext4(["info"]).arg(&place.image));
    assert!(info.contains("sixteen-letters!"), "{info}");
}

#[test]
fn extended_attributes_follow_the_rules_of_their_calls() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    let mount = place.mount(&[]);
    let path = mount.path("file");
    fs::write(&path, b"").unwrap();
    let set = |value: &[u8], flags| rustix::fs::setxattr(&path, "user.name", value, flags);
    let get = |room: usize| {
        let mut value = vec![0; room];
        rustix::fs::getxattr(&path, "user.name", value.as_mut_slice()).map(|length| {
            value.truncate(length);
            value
        })
    };
    assert_eq!(get(10), Err(Errno::NODATA));
    assert_eq!(set(b"x", XattrFlags::REPLACE), Err(Errno::NODATA));
    set(b"value", XattrFlags::CREATE).unwrap();
    assert_eq!(set(b"x", XattrFlags::CREATE), Err(Errno::EXIST));
    assert_eq!(rustix::fs::getxattr_query(&path, "user.name"), Ok(5));
    assert_eq!(get(4), Err(Errno::RANGE));
    assert_eq!(get(5), Ok(b"value".to_vec()));
    let long = vec![3; 700];
    set(&long, XattrFlags::empty()).unwrap();
    rustix::fs::setxattr(&path, "user.second", b"", XattrFlags::empty()).unwrap();
    mount.unmount();

    let mount = place.mount(&[]);
    assert_eq!(get(4096), Ok(long));
    let mut list = vec![0; 100];
    let length = rustix::fs::listxattr(&path, list.as_mut_slice()).unwrap();
    let mut names: Vec<_> = list[..length].split(|&byte| byte == 0).collect();
    names.sort_unstable();
    assert_eq!(names, [&b""[..], b"user.name", b"user.second"]);
    rustix::fs::removexattr(&path, "user.name").unwrap();
    assert_eq!(
        rustix::fs::removexattr(&path, "user.name"),
        Err(Errno::NODATA)
    );
    let unknown = rustix::fs::setxattr(&path, "nonsense.x", b"", XattrFlags::empty());
    assert_eq!(unknown, Err(Errno::OPNOTSUPP));
    mount.unmount();
}

/// An access control list for calls: owner, a named user, group, mask, others.
fn list(owner: u8, user: u8, group: u8, mask: u8, others: u8) -> Vec<u8> {
    let nobody = u32::MAX;
    let rules = [
        (1, owner, nobody),
        (2, user, 1000),
        (4, group, nobody),
        (0x10, mask, nobody),
        (0x20, others, nobody),
    ];
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in rules {
        bytes.extend([tag, 0, permissions, 0]);
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

fn list_of(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut bytes = vec![0; 200];
    let length = rustix::fs::getxattr(path, name, bytes.as_mut_slice()).ok()?;
    bytes.truncate(length);
    Some(bytes)
}

#[test]
fn access_control_lists_and_modes_follow_each_other() {
    const ACCESS: &str = "system.posix_acl_access";
    const DEFAULT: &str = "system.posix_acl_default";
    if !is_root() {
        return;
    }
    let Some(place) = Place::new("16M") else {
        return;
    };
    let mount = place.mount(&["-o", "allow_other"]);
    allow_all(&place.point, 0o755);
    let path = mount.path("file");
    fs::write(&path, b"secret").unwrap();
    allow_all(&path, 0o600);
    assert!(!as_user("cat file", &place.point));
    rustix::fs::setxattr(&path, ACCESS, &list(6, 4, 0, 4, 0), XattrFlags::empty()).unwrap();
    assert_eq!(mode(&path), 0o640, "the mask shows in the mode");
    assert!(as_user("cat file", &place.point));
    allow_all(&path, 0o600);
    assert_eq!(
        list_of(&path, ACCESS),
        Some(list(6, 4, 0, 0, 0)),
        "chmod sets the mask"
    );
    assert!(!as_user("cat file", &place.point));
    for _ in 0..2 {
        // Removing a missing list is no error, unlike removing a missing attribute.
        rustix::fs::removexattr(&path, ACCESS).unwrap();
        assert_eq!(list_of(&path, ACCESS), None);
    }

    let directory = mount.path("directory");
    fs::create_dir(&directory).unwrap();
    rustix::fs::setxattr(
        &directory,
        DEFAULT,
        &list(7, 6, 5, 7, 0),
        XattrFlags::empty(),
    )
    .unwrap();
    fs::write(directory.join("file"), b"").unwrap();
    fs::create_dir(directory.join("inner")).unwrap();
    assert_eq!(mode(&directory.join("file")), 0o660);
    assert_eq!(
        list_of(&directory.join("file"), ACCESS),
        Some(list(6, 6, 5, 6, 0))
    );
    assert_eq!(
        list_of(&directory.join("inner"), DEFAULT),
        Some(list(7, 6, 5, 7, 0))
    );
    let (from, to) = (directory.join("file"), directory.join("moved"));
    renameat_with(CWD, &from, CWD, &to, RenameFlags::WHITEOUT).unwrap();
    assert_eq!(mode(&from), 0);
    assert_eq!(
        list_of(&from, ACCESS),
        Some(list(0, 6, 5, 0, 0)),
        "a whiteout inherits as every file does"
    );
    mount.unmount();
}

#[test]
fn permissions_are_checked_and_set_id_bits_go() {
    if !is_root() {
        return;
    }
    let Some(place) = Place::new("16M") else {
        return;
    };
    let mount = place.mount(&["-o", "allow_other"]);
    allow_all(&place.point, 0o777);
    let path = mount.path("file");
    fs::write(&path, b"content").unwrap();
    allow_all(&path, 0o600);
    assert!(!as_user("cat file", &place.point));
    for (line, before, after) in [
        ("echo more >> file", 0o6777, 0o777),
        ("truncate -s 3 file", 0o4777, 0o777),
        ("true > file", 0o6777, 0o777),
    ] {
        allow_all(&path, before);
        assert!(as_user(line, &place.point));
        assert_eq!(mode(&path), after, "{line}");
    }
    for owner in [Some(1000), None] {
        allow_all(&path, 0o6755);
        std::os::unix::fs::chown(&path, owner, None).unwrap();
        assert_eq!(mode(&path), 0o755, "owner {owner:?}");
    }
    allow_all(&place.point, 0o2777);
    std::os::unix::fs::chown(&place.point, None, Some(1234)).unwrap();
    allow_all(&place.point, 0o2777);
    std::os::unix::fs::chown(&place.point, None, None).unwrap();
    assert!(as_user("umask 027; mkdir inner; touch made", &place.point));
    assert_eq!(fs::metadata(mount.path("inner")).unwrap().gid(), 1234);
    assert_eq!(mode(&mount.path("inner")), 0o2750);
    assert_eq!(mode(&mount.path("made")), 0o640);
    mount.unmount();
}

/// The kernel writes them as several requests, which several threads carry out.
#[test]
fn long_appends_to_an_append_only_file_arrive_in_any_order() {
    if !is_root() {
        return eprintln!("SKIPPED: only root may make files append-only");
    }
    let Some(place) = Place::new("256M") else {
        return;
    };
    let mount = place.mount(&[]);
    let content: Vec<u8> = (0..(2 << 20) + 4096)
        .map(|at| (at % 251) as u8 + 1)
        .collect();
    for number in 0..40 {
        let path = mount.path(format!("log{number}"));
        let file = File::create(&path).unwrap();
        ioctl_setflags(&file, ioctl_getflags(&file).unwrap() | IFlags::APPEND).unwrap();
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(&content).unwrap();
        file.sync_all().unwrap();
        assert!(fs::read(&path).unwrap() == content, "{number}");
    }
    mount.unmount();
    place.check();
}

/// The kernel removes capabilities by an attribute change without attributes.
#[test]
fn roots_writes_take_capabilities_and_leave_the_set_user_id_bit() {
    /// `cap_net_raw=ep`, of the second revision.
    const NET_RAW: [u8; 20] = [
        1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ];
    const NAME: &str = "security.capability";
    if !is_root() {
        return eprintln!("SKIPPED: only root may give capabilities");
    }
    let Some(place) = Place::new("16M") else {
        return;
    };
    let mount = place.mount(&[]);
    let path = mount.path("program");
    fs::write(&path, b"code").unwrap();
    allow_all(&path, 0o4755);
    rustix::fs::setxattr(&path, NAME, &NET_RAW, XattrFlags::empty()).unwrap();
    let mut file = OpenOptions::new().append(true).open(&path).unwrap();
    file.write_all(b" and more").unwrap();
    drop(file);
    assert_eq!(mode(&path), 0o4755);
    assert_eq!(rustix::fs::getxattr_query(&path, NAME), Err(Errno::NODATA));
    mount.unmount();
}

#[test]
fn flags_are_told_and_set() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    let mount = place.mount(&[]);
    let path = mount.path("file");
    let file = File::create(&path).unwrap();
    let flags = ioctl_getflags(&file).unwrap();
    assert!(!flags.contains(IFlags::IMMUTABLE));
    ioctl_setflags(&file, flags | IFlags::NODUMP).unwrap();
    assert!(ioctl_getflags(&file).unwrap().contains(IFlags::NODUMP));
    if is_root() {
        ioctl_setflags(&file, flags | IFlags::IMMUTABLE).unwrap();
        assert_eq!(
            fs::remove_file(&path).unwrap_err().kind(),
            ErrorKind::PermissionDenied
        );
        ioctl_setflags(&file, flags).unwrap();
    }
    drop(file);
    fs::remove_file(&path).unwrap();
    mount.unmount();
}
