//! Ordinary users on a mount that root made for all: access to the files of others, and what is
//! reserved for root.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};

use rustix::fs::{
    Access, AtFlags, CWD, FallocateFlags, IFlags, Mode, OFlags, Timespec, Timestamps, XattrFlags,
    access, fallocate, ioctl_setflags, utimensat,
};
use rustix::io::Errno;

use crate::common::{Mounted, Place, copy_program, has, is_root, pext4, run, succeed};

/// Runs a shell line as the user and group of this number.
fn as_user(user: u32, line: &str, directory: &Path) -> Output {
    let mut shell = Command::new("sh");
    shell.args(["-c", line]).current_dir(directory);
    run(shell.uid(user).gid(user))
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("it is ours");
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("it is there").mode() & 0o7777
}

/// A mount for all, on whose root directory everyone may write.
fn place() -> Option<Place> {
    if !is_root() {
        return None;
    }
    Place::new("32M")
}

#[test]
fn the_mount_of_another_user_is_called_that() {
    let Some(place) = place() else {
        return;
    };
    let mount = place.mount(&["-o", "allow_other"]);
    let program = place.point.with_file_name("pext4");
    copy_program(&program);
    let line = format!("'{}' umount '{}'", program.display(), place.point.display());
    let refused = as_user(1001, &line, Path::new("/"));
    let told = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success(), "{refused:?}");
    assert!(told.contains("user 0 has mounted it"), "{told}");
    mount.unmount();
}

#[test]
fn a_stranger_takes_no_set_id_bits() {
    let Some(place) = place() else {
        return;
    };
    let mount = place.mount(&["-o", "allow_other"]);
    let file = mount.path("file");
    fs::write(&file, b"a program").unwrap();
    std::os::unix::fs::chown(&file, Some(1000), Some(1000)).unwrap();
    // Calls that do not require the owner pass the kernel's checks.
    for bits in [0o6755, 0o2745] {
        set_mode(&file, bits);
        let refused = as_user(1001, "chown : file", &place.point);
        assert!(!refused.status.success(), "{refused:?}");
        assert_eq!(mode(&file), bits);
    }
    // A write by a user with write permission also clears them.
    set_mode(&file, 0o6777);
    let allowed = as_user(1001, "echo other >> file", &place.point);
    assert!(allowed.status.success(), "{allowed:?}");
    assert_eq!(mode(&file), 0o777);
    set_mode(&file, 0o6755);
    let allowed = as_user(1000, "chown : file", &place.point);
    assert!(allowed.status.success(), "{allowed:?}");
    assert_eq!(mode(&file), 0o755);
    mount.unmount();
}

/// Runs a shell line as root without some capabilities; `None`, and a message, without `setpriv`.
fn without(capabilities: &str, line: &str, directory: &Path) -> Option<Output> {
    if !has("setpriv") {
        eprintln!("SKIPPED: setpriv is not installed (package util-linux)");
        return None;
    }
    let mut setpriv = Command::new("setpriv");
    for set in ["--bounding-set", "--inh-caps"] {
        setpriv.args([set, capabilities]);
    }
    setpriv.args(["sh", "-c", line]).current_dir(directory);
    Some(run(&mut setpriv))
}

#[test]
fn root_may_do_what_its_capabilities_allow() {
    let Some(place) = place() else {
        return;
    };
    let mount = place.mount(&["-o", "allow_other"]);
    let file = mount.path("file");
    fs::write(&file, vec![7; 5000]).unwrap();
    std::os::unix::fs::chown(&file, Some(1001), Some(1001)).unwrap();
    for line in ["truncate -s 10 file", "fallocate -l 9000 file"] {
        set_mode(&file, 0o6777);
        succeed(
            Command::new("sh")
                .args(["-c", line])
                .current_dir(&place.point),
        );
        assert_eq!(mode(&file), 0o6777, "{line}");
        let Some(done) = without("-fsetid", line, &place.point) else {
            return;
        };
        assert!(done.status.success(), "{done:?}");
        assert_eq!(mode(&file), 0o777, "{line}");
    }
    set_mode(&file, 0o4755);
    let refused = without("-all", "chown : file", &place.point).expect("it is there");
    assert!(!refused.status.success(), "{refused:?}");
    assert_eq!(mode(&file), 0o4755);
    succeed(Command::new("fstrim").arg(&place.point));
    let refused = without("-sys_admin", "fstrim .", &place.point).expect("it is there");
    assert!(!refused.status.success(), "{refused:?}");
    mount.unmount();
}

#[test]
fn the_time_of_the_last_change_of_an_append_only_file_may_move() {
    let Some(place) = place() else {
        return;
    };
    let mount = place.mount(&["-o", "allow_other"]);
    fs::write(mount.path("file"), b"a log").unwrap();
    for (line, succeeds) in [
        ("chattr +a file && chown : file", true),
        ("chown 7 file", false),
        ("chattr -a file", true),
    ] {
        let ended = as_user(0, line, &place.point);
        assert_eq!(ended.status.success(), succeeds, "{line}: {ended:?}");
    }
    mount.unmount();
}

#[test]
fn a_change_of_owner_that_names_none_shows_in_the_time_of_a_directory() {
    let Some(place) = place() else {
        return;
    };
    let mount = place.mount(&[]);
    let path = mount.path("directory");
    fs::create_dir(&path).unwrap();
    let changed = || {
        let told = fs::metadata(&path).unwrap();
        (told.ctime(), told.ctime_nsec())
    };
    let before = changed();
    // Again and again, since a clock that ticks slowly may show the same time.
    let is_seen = (0..500).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(2));
        std::os::unix::fs::chown(&path, None, None).unwrap();
        changed() > before
    });
    assert!(is_seen);
    mount.unmount();
}

#[test]
fn what_is_kept_for_root_is_for_roots_files() {
    let Some(place) = place() else {
        return;
    };
    let mount = place.mount(&["-o", "allow_other"]);
    set_mode(&place.point, 0o777);
    let own = mount.path("of root");
    File::create(&own).unwrap();
    // A call that fails takes nothing, so the last ones are small.
    let filling = "i=0; for step in 1024 64 4; do \
        while fallocate -o ${i}K -l ${step}K all; do i=$((i+step)); done; done";
    as_user(1000, filling, &place.point);
    let refused = as_user(1000, "fallocate -l 512K more", &place.point);
    assert!(!refused.status.success(), "{refused:?}");
    let file = File::options().write(true).open(&own).unwrap();
    fallocate(&file, FallocateFlags::empty(), 0, 512 << 10).unwrap();
    drop(file);
    mount.unmount();
}

/// Ago, as the times of access and modification.
fn set_times(path: &Path, accessed: i64, modified: i64) {
    let time = |seconds| Timespec {
        tv_sec: seconds,
        tv_nsec: 0,
    };
    let times = Timestamps {
        last_access: time(accessed),
        last_modification: time(modified),
    };
    utimensat(CWD, path, &times, AtFlags::empty()).expect("it is ours");
}

#[test]
fn reading_is_noted_as_relatime_says() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    let mount = place.mount(&[]);
    fs::write(mount.path("file"), b"content").unwrap();
    fs::create_dir(mount.path("directory")).unwrap();
    for name in ["file", "directory"] {
        set_times(&mount.path(name), 5, 6);
    }
    mount.unmount();
    let noted = |option: &str| {
        // A mount of its own, whose pages are not there yet.
        let mount = place.mount(&["-o", option]);
        let (file, directory) = (mount.path("file"), mount.path("directory"));
        fs::read(&file).unwrap();
        fs::read_dir(&directory).unwrap().for_each(drop);
        let times = [&file, &directory].map(|path| fs::metadata(path).unwrap().atime());
        mount.unmount();
        times
    };
    assert_eq!(noted("noatime"), [5, 5]);
    let times = noted("nodiratime");
    assert!(times[0] > 6 && times[1] == 5, "{times:?}");
    let later = noted("relatime");
    assert!(later[0] == times[0] && later[1] > 6, "{later:?}");
}

/// The kernel could answer all but the first from its cache.
#[test]
fn every_listing_and_following_is_noted_if_that_was_asked_for() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    let mount = place.mount(&["-o", "strictatime"]);
    let (directory, link) = (mount.path("directory"), mount.path("link"));
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("file"), b"").unwrap();
    std::os::unix::fs::symlink("directory", &link).unwrap();
    let old = Timespec {
        tv_sec: 5,
        tv_nsec: 0,
    };
    let times = Timestamps {
        last_access: old,
        last_modification: old,
    };
    for turn in 0..3 {
        for path in [&directory, &link] {
            utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
        }
        fs::read_dir(&directory).unwrap().for_each(drop);
        fs::read_link(&link).unwrap();
        for path in [&directory, &link] {
            let accessed = fs::symlink_metadata(path).unwrap().atime();
            assert!(accessed > 5, "{} in turn {turn}", path.display());
        }
    }
    mount.unmount();
}

/// Programs that make backups open directories so.
#[test]
fn a_listing_that_leaves_the_access_time_is_not_noted() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    let mount = place.mount(&[]);
    let directory = mount.path("directory");
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("file"), b"").unwrap();
    set_times(&directory, 5, 6);
    let list = |flags| {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | flags;
        let opened = rustix::fs::open(&directory, flags, Mode::empty()).unwrap();
        let entries = rustix::fs::Dir::new(opened).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().to_owned());
        assert!(names.into_iter().any(|name| name.as_c_str() == c"file"));
        fs::metadata(&directory).unwrap().atime()
    };
    assert_eq!(list(OFlags::NOATIME), 5);
    // What the kernel has kept of the first listing must not answer it.
    assert!(list(OFlags::empty()) > 6);
    mount.unmount();
}

/// Such inodes have no room for parts of a second.
#[test]
fn times_of_small_inodes_are_shown_as_they_are_kept() {
    let Some(place) = Place::empty_if_mountable() else {
        return;
    };
    let mut mkfs = pext4(["mkfs", "-q", "-I", "128", "--size", "16M"]);
    succeed(mkfs.arg(&place.image));
    let times = || {
        let mount = place.mount(&[]);
        let file = mount.path("file");
        if !file.exists() {
            fs::write(&file, b"written now").unwrap();
            fs::create_dir(mount.path("directory")).unwrap();
            set_times(&file, 1_700_000_000, 1_700_000_001);
        }
        let times = [file, mount.path("directory")].map(|path| {
            let metadata = fs::metadata(path).unwrap();
            [
                (metadata.mtime(), metadata.mtime_nsec()),
                (metadata.ctime(), metadata.ctime_nsec()),
            ]
        });
        mount.unmount();
        times
    };
    let first = times();
    let parts = first.as_flattened().iter().map(|(_, part)| *part);
    assert!(parts.clone().all(|part| part == 0), "{first:?}");
    assert_eq!(times(), first);
}

#[test]
fn an_attribute_is_not_made_and_replaced_at_once() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    let mount = place.mount(&[]);
    let path = mount.path("file");
    fs::write(&path, b"").unwrap();
    let both = XattrFlags::CREATE | XattrFlags::REPLACE;
    let set = |name, flags| rustix::fs::setxattr(&path, name, b"value", flags);
    assert_eq!(set("user.name", both), Err(Errno::NODATA));
    set("user.name", XattrFlags::empty()).unwrap();
    assert_eq!(set("user.name", both), Err(Errno::EXIST));
    assert_eq!(set("nonsense.x", both), Err(Errno::OPNOTSUPP));
    mount.unmount();
}

#[test]
fn chattr_changes_the_form_of_a_map() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    if !has("chattr") {
        return;
    }
    let mount = place.mount(&[]);
    let chattr = |change: &str, name: &str| {
        let mut command = Command::new("chattr");
        run(command.arg(change).arg(mount.path(name)))
    };
    let content: Vec<u8> = (0..200u8).cycle().take(10_000).collect();
    let write = |name: &str, content: &[u8]| {
        let mut file = File::create(mount.path(name)).unwrap();
        file.write_all(content).and_then(|()| file.sync_all())
    };
    write("small", &content).unwrap();
    write("large", &[1; 100_000]).unwrap();
    for change in ["-e", "+e", "-e"] {
        assert!(chattr(change, "small").status.success(), "{change}");
        assert_eq!(fs::read(mount.path("small")).unwrap(), content, "{change}");
    }
    let refused = chattr("-e", "large");
    assert!(!refused.status.success(), "{refused:?}");
    fs::create_dir(mount.path("directory")).unwrap();
    succeed(
        Command::new("chattr")
            .arg("+P")
            .arg(mount.path("directory")),
    );
    assert!(!chattr("+P", "small").status.success());
    succeed(Command::new("chattr").arg("+x").arg(mount.path("small")));
    mount.unmount();
    let mount = place.mount(&[]);
    assert_eq!(fs::read(mount.path("small")).unwrap(), content);
    mount.unmount();
}

#[test]
fn an_append_only_file_keeps_its_times_from_its_owner() {
    let Some(place) = place() else {
        return;
    };
    let mount = place.mount(&["-o", "allow_other"]);
    let path = mount.path("log");
    fs::write(&path, b"first\n").unwrap();
    fs::create_dir(mount.path("logs")).unwrap();
    for name in ["log", "logs"] {
        std::os::unix::fs::chown(mount.path(name), Some(1000), Some(1000)).unwrap();
        succeed(Command::new("chattr").arg("+a").arg(mount.path(name)));
        for times in ["-d @5", "-m -d @5", "-a -d @5", "-m", "-a"] {
            let touched = as_user(1000, &format!("touch {times} {name}"), &place.point);
            assert!(!touched.status.success(), "{name}: {times}");
        }
        let touched = as_user(1000, &format!("touch {name}"), &place.point);
        assert!(touched.status.success(), "{name}: {touched:?}");
    }
    let appended = as_user(1000, "echo more >> log", &place.point);
    assert!(appended.status.success(), "{appended:?}");
    assert_eq!(fs::read(&path).unwrap(), b"first\nmore\n");
    for name in ["log", "logs"] {
        succeed(Command::new("chattr").arg("-a").arg(mount.path(name)));
    }
    mount.unmount();
}

#[test]
fn an_append_only_program_takes_what_is_appended_and_loses_its_bits() {
    let Some(place) = place() else {
        return;
    };
    if !has("chattr") {
        return;
    }
    let mount = place.mount(&["-o", "allow_other"]);
    let file = mount.path("file");
    fs::write(&file, b"a program").unwrap();
    set_mode(&file, 0o4777);
    succeed(Command::new("chattr").arg("+a").arg(&file));
    let appended = as_user(1000, "echo more >> file", &place.point);
    assert!(appended.status.success(), "{appended:?}");
    assert_eq!(mode(&file), 0o777);
    assert_eq!(fs::read(&file).unwrap(), b"a programmore\n");
    succeed(Command::new("chattr").arg("-a").arg(&file));
    mount.unmount();
}

/// What `access(2)` tells the calling root of each path, for reading, writing and executing.
fn told_to_root(mount: &Mounted<'_>) -> Vec<(&'static str, [Option<Errno>; 3])> {
    let paths = [
        ".",
        "text",
        "program",
        "closed",
        "closed/inner",
        "immutable",
        "link",
        "pipe",
    ];
    let wanted = [Access::READ_OK, Access::WRITE_OK, Access::EXEC_OK];
    let ask = |path| wanted.map(|wanted| access(mount.path(path), wanted).err());
    paths.map(|path| (path, ask(path))).to_vec()
}

/// Whether the kernel checks permissions: if it was asked to, or if root lacks capabilities.
fn is_judged(mount: &Mounted<'_>) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").expect("/proc is there");
    let path = mount.path("");
    let path = path.to_str().expect("text").trim_end_matches('/');
    let path = path.replace(' ', "\\040");
    let line = table.lines().find(|line| line.contains(&path));
    line.expect("it is mounted").contains("default_permissions")
}

/// Files that others own, which root may use nevertheless, and some that it may not use in every
/// way.
fn make_files_of_others(mount: &Mounted<'_>) {
    let closed = mount.path("closed");
    fs::create_dir(&closed).expect("root makes it");
    let files = ["text", "program", "closed/inner", "immutable"].map(|name| mount.path(name));
    for file in &files {
        fs::write(file, "#!/bin/true\n").expect("root makes it");
    }
    std::os::unix::fs::symlink("program", mount.path("link")).expect("root makes it");
    succeed(Command::new("mkfifo").arg(mount.path("pipe")));
    for path in files.iter().chain([&closed, &mount.path("pipe")]) {
        std::os::unix::fs::chown(path, Some(1000), Some(1000)).expect("root makes it");
        set_mode(path, 0);
    }
    set_mode(&mount.path("program"), 0o100);
    let immutable = File::open(mount.path("immutable")).expect("root makes it");
    ioctl_setflags(&immutable, IFlags::IMMUTABLE).expect("root makes it");
}

#[test]
fn root_is_told_the_same_whether_the_kernel_judges_or_nobody_need() {
    let Some(place) = place() else {
        return;
    };
    let mount = place.mount(&[]);
    make_files_of_others(&mount);
    mount.unmount();
    let (no, not_executable) = (Some(Errno::PERM), Some(Errno::ACCESS));
    let writable = [
        (".", [None, None, None]),
        ("text", [None, None, not_executable]),
        ("program", [None, None, None]),
        ("closed", [None, None, None]),
        ("closed/inner", [None, None, not_executable]),
        ("immutable", [None, no, not_executable]),
        ("link", [None, None, None]),
        ("pipe", [None, None, not_executable]),
    ];
    for options in ["rw", "default_permissions"] {
        let mount = place.mount(&["-o", options]);
        for ((path, told), (_, expected)) in told_to_root(&mount).into_iter().zip(writable) {
            // A kernel that checks permissions does not know the flags; the server refuses the
            // write.
            let expected = match path {
                "immutable" if is_judged(&mount) => [None, None, not_executable],
                _ => expected,
            };
            assert_eq!(told, expected, "{path}, {options}");
        }
        assert_eq!(fs::read(mount.path("text")).unwrap(), b"#!/bin/true\n");
        let refused = Command::new(mount.path("text")).status().unwrap_err();
        assert_eq!(
            refused.kind(),
            std::io::ErrorKind::PermissionDenied,
            "{options}"
        );
        succeed(&mut Command::new(mount.path("program")));
        fs::write(mount.path("closed/made"), b"").unwrap();
        fs::remove_file(mount.path("closed/made")).unwrap();
        mount.unmount();
    }
    for options in ["ro", "ro,default_permissions"] {
        let mount = place.mount(&["-o", options]);
        let read_only = Some(Errno::ROFS);
        for (path, [read, write, execute]) in told_to_root(&mount) {
            let (_, [_, _, expected]) = writable
                .into_iter()
                .find(|(other, _)| *other == path)
                .unwrap();
            let expected_write = (path != "pipe").then_some(read_only).flatten();
            assert_eq!((read, write), (None, expected_write), "{path}, {options}");
            assert_eq!(execute, expected, "{path}, {options}");
        }
        mount.unmount();
    }
}

#[test]
fn access_lists_are_kept_where_nobody_is_judged() {
    const ACCESS: &str = "system.posix_acl_access";
    let Some(place) = place() else {
        return;
    };
    if !has("setfacl") {
        return;
    }
    for options in ["rw", "default_permissions"] {
        let mount = place.mount(&["-o", options]);
        let directory = mount.path(options);
        fs::create_dir(&directory).unwrap();
        let set = |words: &[&str], path: &Path| {
            succeed(Command::new("setfacl").args(words).arg(path));
        };
        set(&["-d", "-m", "u:1000:rw-,g::r-x,o::---"], &directory);
        let file = directory.join("file");
        fs::write(&file, b"").unwrap();
        assert_eq!(
            mode(&file),
            0o660,
            "the list of the directory, not the mask of the process"
        );
        set(&["-m", "u:1000:r--,m::r--"], &file);
        assert_eq!(mode(&file), 0o640, "the mask shows in the mode");
        set_mode(&file, 0o600);
        let told = succeed(Command::new("getfacl").arg("-cp").arg(&file));
        assert!(told.contains("mask::---"), "{told}");
        set(&["-b"], &file);
        let gone = rustix::fs::getxattr(&file, ACCESS, &mut [0; 100]);
        assert_eq!(gone.unwrap_err(), Errno::NODATA, "{options}");
        mount.unmount();
    }
}

/// Root of such a namespace cannot read them.
#[test]
fn trusted_attributes_are_not_listed_in_a_user_namespace() {
    const SCRIPT: &str = "\
        \"$0\" mount \"$1\" \"$2\" || exit 77
        getfattr -m - --absolute-names \"$2/file\"
        \"$0\" umount \"$2\"";
    let Some(place) = place() else {
        return;
    };
    if !has("unshare") || !has("getfattr") {
        return;
    }
    let mount = place.mount(&[]);
    let file = mount.path("file");
    fs::write(&file, b"").unwrap();
    for name in ["trusted.name", "user.name"] {
        rustix::fs::setxattr(&file, name, b"value", XattrFlags::empty()).unwrap();
    }
    let names = |told: &str| {
        let names = told.lines().filter(|line| line.contains(".name"));
        names.map(str::to_owned).collect::<Vec<_>>()
    };
    let list = |file: &Path| {
        let mut getfattr = Command::new("getfattr");
        succeed(getfattr.args(["-m", "-", "--absolute-names"]).arg(file))
    };
    assert_eq!(names(&list(&file)), ["trusted.name", "user.name"]);
    mount.unmount();
    let output = run(Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", SCRIPT])
        .arg(env!("CARGO_BIN_EXE_pext4"))
        .args([&place.image, &place.point]));
    let errors = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(77) || errors.contains("unshare failed") {
        eprintln!("SKIPPED: no mount in a user namespace: {errors}");
        return;
    }
    assert!(output.status.success(), "{output:?}");
    let told = String::from_utf8_lossy(&output.stdout);
    assert_eq!(names(&told), ["user.name"], "{told}");
}
