//! State of a file that kernel and server each have a part of: blocks, errors, names, attributes.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use rustix::fs::{FallocateFlags, RawDir, XattrFlags, fallocate, fstat, getxattr, setxattr};

use crate::common::{Place, has, pext4, succeed};

#[test]
fn the_blocks_of_a_file_are_counted_once_it_is_durable() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    let mount = place.mount(&[]);
    let file = File::create(mount.path("file")).unwrap();
    let blocks = || fstat(file.as_fd()).unwrap().st_blocks;
    assert_eq!(blocks(), 0);
    (&file).write_all(&vec![7; 1 << 20]).unwrap();
    // None yet, if no neighbour has all mounts written just now. The kernel remembers the answer.
    assert!(blocks() <= (1 << 20) / 512);
    file.sync_all().unwrap();
    assert_eq!(blocks(), (1 << 20) / 512);
    drop(file);
    mount.unmount();
}

/// The names that a listing has left, in portions of a page.
fn rest_of<Fd: AsFd>(listing: &mut RawDir<'_, Fd>) -> BTreeSet<Vec<u8>> {
    let mut names = BTreeSet::new();
    while let Some(entry) = listing.next() {
        names.insert(
            entry
                .expect("it can be read")
                .file_name()
                .to_bytes()
                .to_vec(),
        );
    }
    names
}

#[test]
fn a_listing_that_began_after_a_change_shows_it() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    let mount = place.mount(&[]);
    let path = mount.path("shared");
    fs::create_dir(&path).unwrap();
    for number in 0..1000 {
        File::create(path.join(format!("old-{number}"))).unwrap();
    }
    let mut buffers = [[MaybeUninit::uninit(); 4096]; 2];
    let [first, second] = &mut buffers;
    let mut early = RawDir::new(File::open(&path).unwrap(), first);
    for _ in 0..900 {
        early.next().expect("there are more").unwrap();
    }
    // They are all over the directory, since names are listed by their hash.
    let new = (0..100).map(|number| format!("new-{number}").into_bytes());
    let new: BTreeSet<_> = new.collect();
    for (number, name) in (0..).zip(&new) {
        fs::remove_file(path.join(format!("old-{number}"))).unwrap();
        File::create(path.join(OsStr::from_bytes(name))).unwrap();
    }
    let mut late = RawDir::new(File::open(&path).unwrap(), second);
    let begun = late.next().expect("there are names").unwrap();
    let begun = begun.file_name().to_bytes().to_vec();
    // With the end, the kernel has all that the first listing has read.
    rest_of(&mut early);
    let mut listed = rest_of(&mut late);
    listed.insert(begun);
    assert_eq!(listed.len(), 1002, "with `.` and `..`");
    assert!(new.is_subset(&listed), "{:?}", new.difference(&listed));
    drop((early, late));
    mount.unmount();
}

#[test]
fn a_directory_that_moved_lists_its_new_parent() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    let mount = place.mount(&[]);
    let [old, new] = ["old", "new"].map(|name| mount.path(name));
    fs::create_dir_all(old.join("moved")).unwrap();
    fs::create_dir(&new).unwrap();
    let parent = |path: &Path| {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut listing = RawDir::new(File::open(path).unwrap(), &mut buffer);
        let mut parent = None;
        while let Some(entry) = listing.next() {
            let entry = entry.unwrap();
            if entry.file_name().to_bytes() == b".." {
                parent = Some(entry.ino());
            }
        }
        parent.expect("`..` is listed")
    };
    let number = |path: &Path| fs::metadata(path).unwrap().ino();
    for _ in 0..2 {
        assert_eq!(parent(&old.join("moved")), number(&old));
    }
    fs::rename(old.join("moved"), new.join("moved")).unwrap();
    assert_eq!(parent(&new.join("moved")), number(&new));
    mount.unmount();
}

#[test]
fn where_the_server_is_asked_an_immutable_file_is_not_opened_for_writing() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    if !has("chattr") {
        return;
    }
    let mount = place.mount(&["-o", "strict_open"]);
    let [fixed, grows] = ["fixed", "grows"].map(|name| mount.path(name));
    for (path, flag) in [(&fixed, "+i"), (&grows, "+a")] {
        fs::write(path, b"one\n").unwrap();
        succeed(Command::new("chattr").arg(flag).arg(path));
    }
    let is_refused = |options: &OpenOptions, path: &Path| {
        let opened = options.open(path).map_err(|error| error.raw_os_error());
        matches!(opened, Err(Some(1)))
    };
    let mut write = OpenOptions::new();
    write.write(true);
    let mut append = OpenOptions::new();
    append.append(true);
    assert!(is_refused(&write, &fixed) && is_refused(&append, &fixed));
    assert!(is_refused(&write, &grows));
    append.open(&grows).unwrap().write_all(b"two\n").unwrap();
    assert_eq!(fs::read(&grows).unwrap(), b"one\ntwo\n");
    assert_eq!(fs::read(&fixed).unwrap(), b"one\n");
    for (path, flag) in [(&fixed, "-i"), (&grows, "-a")] {
        succeed(Command::new("chattr").arg(flag).arg(path));
    }
    append.open(&fixed).unwrap().write_all(b"two\n").unwrap();
    mount.unmount();
}

#[test]
fn the_blocks_that_an_allocation_got_before_it_failed_are_counted() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    let mount = place.mount(&[]);
    let file = File::create(mount.path("file")).unwrap();
    let blocks = || fstat(file.as_fd()).unwrap().st_blocks;
    assert_eq!(blocks(), 0);
    let failed = fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 1 << 30);
    assert_eq!(failed, Err(rustix::io::Errno::NOSPC));
    assert!(blocks() > 0, "as in ext4, they stay");
    drop(file);
    mount.unmount();
}

#[test]
fn the_blocks_of_a_file_that_stays_open_are_counted_as_it_grows() {
    let Some(place) = Place::new("64M") else {
        return;
    };
    let mount = place.mount(&[]);
    let file = File::create(mount.path("file")).unwrap();
    let blocks = || fstat(file.as_fd()).unwrap().st_blocks;
    for pieces in 1..=4 {
        (&file).write_all(&vec![7; 2 << 20]).unwrap();
        rustix::fs::syncfs(&file).unwrap();
        let is_counted = (0..4000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(5));
            // The map may have one block of 1 KiB, if the kernel's writes came in another order.
            [0, 2].contains(&(blocks() - pieces * (2 << 20) / 512))
        });
        assert!(is_counted, "{pieces}: {}", blocks());
    }
    drop(file);
    mount.unmount();
}

#[test]
fn no_space_is_forgotten_once_there_is_some() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    let mount = place.mount(&[]);
    let (ballast, path) = (mount.path("ballast"), mount.path("endless"));
    fs::write(&ballast, vec![1; 4 << 20]).unwrap();
    let mut file = File::create(&path).unwrap();
    let written = file.write_all(&vec![7; 32 << 20]);
    // Also if the write was refused: the kernel's cached data would fill the space that is
    // released.
    let synced = file.sync_all();
    assert!(written.is_err() || synced.is_err(), "no space");
    let free = || rustix::fs::statvfs(&place.point).unwrap().f_bfree;
    let before = free();
    fs::remove_file(&ballast).unwrap();
    // The kernel gives a file back with a message that nobody waits for; on a busy machine that may
    // take a while.
    let has_come = (0..4000).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(5));
        free() > before
    });
    assert!(has_come, "the room of a removed file");
    file.write_all(b"more").expect("there is room");
    file.sync_all().expect("there is room");
    drop(file);
    mount.unmount();
}

/// More writers than the server has threads find no space while a deleted file is still open, which
/// is closed then: the message that gives it back is read though all of them wait for it.
#[test]
fn writers_that_find_no_space_do_not_keep_the_server_from_hearing_that_some_comes() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    let mount = place.mount(&[]);
    let files: Vec<File> = (0..32)
        .map(|number| File::create(mount.path(number.to_string())).unwrap())
        .collect();
    let held = File::create(mount.path("held")).unwrap();
    let take = |file: &File, length| fallocate(file, FallocateFlags::empty(), 0, length);
    let free = rustix::fs::statvfs(&place.point).unwrap();
    take(&held, free.f_bavail * free.f_bsize).expect("all there is");
    fs::remove_file(mount.path("held")).unwrap();
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let write = |file| scope.spawn(move || take(file, 64 << 10));
        let writers: Vec<_> = files.iter().map(write).collect();
        // So that they wait by then; if they do not, nothing is tested, and nothing fails.
        std::thread::sleep(std::time::Duration::from_millis(15));
        drop(held);
        let outcome = |writer: std::thread::ScopedJoinHandle<'_, _>| writer.join().unwrap();
        writers.into_iter().map(outcome).collect()
    });
    assert_eq!(outcomes, vec![Ok(()); files.len()]);
    drop(files);
    mount.unmount();
}

#[test]
fn every_change_is_on_the_device_where_that_was_asked_for() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    let mount = place.mount(&["-o", "commit=300,sync"]);
    let path = mount.path("file");
    let copy = place.image.with_file_name("copy");
    // What a power cut would leave.
    let left = |command: &str| {
        fs::copy(&place.image, &copy).unwrap();
        succeed(pext4([command]).arg(&copy).arg("/file"))
    };
    fs::write(&path, b"content").unwrap();
    assert_eq!(left("cat"), "content");
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(4).unwrap();
    assert_eq!(left("cat"), "cont");
    fs::set_permissions(&path, PermissionsExt::from_mode(0o641)).unwrap();
    assert!(left("stat").contains("-rw-r----x"), "{}", left("stat"));
    setxattr(&path, "user.name", b"value", XattrFlags::empty()).unwrap();
    assert!(left("stat").contains("user.name"), "{}", left("stat"));
    drop(file);
    mount.unmount();
}

#[test]
fn a_name_of_what_cannot_be_read_is_listed_and_told_as_an_error() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    if !has("debugfs") {
        return;
    }
    let mount = place.mount(&[]);
    for name in ["a", "broken", "c"] {
        fs::write(mount.path(name), name).unwrap();
    }
    mount.unmount();
    // The second is an entry for the inode of bad blocks, whose number is that of FUSE's root.
    for request in ["set_inode_field /broken mode 0170644", "ln <1> /reserved"] {
        let mut debugfs = Command::new("debugfs");
        succeed(debugfs.args(["-w", "-R", request]).arg(&place.image));
    }
    let mount = place.mount(&[]);
    for _ in 0..2 {
        let listed = fs::read_dir(&place.point).unwrap();
        let mut names: Vec<OsString> = listed.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["a", "broken", "c", "lost+found", "reserved"]);
        let told = fs::symlink_metadata(mount.path("broken")).unwrap_err();
        assert!(matches!(told.raw_os_error(), Some(5 | 117)), "{told}");
    }
    assert_eq!(fs::read(mount.path("c")).unwrap(), b"c");
    drop(mount);
}

#[test]
fn what_a_mount_tells_of_itself_hides_no_attribute() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    let mount = place.mount(&[]);
    let path = mount.path("file");
    fs::write(&path, b"").unwrap();
    let value = || {
        let mut value = vec![0; 65536];
        let length = getxattr(&path, "user.pext4.report", &mut value).unwrap();
        value.truncate(length);
        value
    };
    assert!(value().starts_with(b"scaling: "));
    setxattr(&path, "user.pext4.report", b"mine", XattrFlags::empty()).unwrap();
    assert_eq!(value(), b"mine");
    setxattr(
        &place.point,
        "user.pext4.report",
        b"forged",
        XattrFlags::empty(),
    )
    .unwrap();
    let told = succeed(pext4(["stats"]).arg(&place.point));
    assert!(told.starts_with("scaling: "), "{told}");
    mount.unmount();
}

#[test]
fn a_mount_in_the_background_holds_no_descriptor_of_its_caller() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    let mut shell = Command::new("sh");
    shell
        .args(["-c", "exec 9>held && \"$0\" mount \"$1\" \"$2\""])
        .args([
            env!("CARGO_BIN_EXE_pext4").as_ref(),
            place.image.as_path(),
            &place.point,
        ])
        .current_dir(place.image.parent().unwrap());
    succeed(&mut shell);
    let mount = place.guard();
    let descriptors = format!("/proc/{}/fd", place.server().as_raw_nonzero());
    for entry in fs::read_dir(descriptors).unwrap() {
        let held = fs::read_link(entry.unwrap().path()).unwrap_or_default();
        assert!(!held.ends_with("held"), "{}", held.display());
    }
    mount.unmount();
}

#[test]
fn a_damaged_entry_hides_no_name_before_it_and_is_told() {
    let Some(place) = Place::empty_if_mountable() else {
        return;
    };
    let Some(names) = place.make_with_damaged_directory() else {
        return;
    };
    let mount = place.mount(&["-o", "ro"]);
    let mut shown = Vec::new();
    let mut failed = None;
    for entry in fs::read_dir(mount.path("damaged")).expect("it can be opened") {
        match entry {
            Ok(entry) => shown.push(entry.file_name().into_string().expect("text")),
            Err(error) => failed = Some(error),
        }
    }
    shown.sort();
    let mut names = names;
    names.sort_unstable();
    assert_eq!(shown, names);
    let failed = failed.expect("somebody is told that this is not all");
    assert_eq!(
        failed.raw_os_error(),
        Some(rustix::io::Errno::UCLEAN.raw_os_error())
    );
    drop(mount);
}

#[test]
fn a_wrong_checksum_has_another_error_than_an_impossible_entry() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    let mount = place.mount(&[]);
    fs::create_dir(mount.path("directory")).expect("room");
    fs::write(mount.path("directory/some-name"), b"").expect("room");
    mount.unmount();
    let mut bytes = fs::read(&place.image).expect("it was made");
    // The journal has it too.
    while let Some(at) = bytes.windows(9).position(|window| window == b"some-name") {
        bytes[at] = b'S';
    }
    fs::write(&place.image, &bytes).expect("it can be written");
    let mount = place.mount(&["-o", "ro"]);
    let failed = fs::metadata(mount.path("directory/some-name")).expect_err("it is damaged");
    assert_eq!(
        failed.raw_os_error(),
        Some(rustix::io::Errno::BADMSG.raw_os_error())
    );
    drop(mount);
}

/// A reply to a listing has entries or an error. In an indexed directory, later replies do not come
/// to the damaged leaf again.
#[test]
fn a_damaged_leaf_of_many_is_told_at_the_end_of_the_directory() {
    let Some(place) = Place::new("32M") else {
        return;
    };
    const NAMES: usize = 2000;
    let mount = place.mount(&[]);
    fs::create_dir(mount.path("many")).expect("room");
    for number in 0..NAMES {
        fs::write(mount.path(format!("many/name-{number}")), b"").expect("room");
    }
    mount.unmount();
    let stat = succeed(
        pext4(["stat", "--json", "--extents"])
            .arg(&place.image)
            .arg("/many"),
    );
    let stat: serde_json::Value = serde_json::from_str(&stat).expect("JSON");
    let ranges = stat["extents"].as_array().expect("a list");
    // The first leaf has the lowest hashes and is listed first.
    let first = ranges.iter().find(|range| {
        let start = range["offset"].as_u64().expect("a number");
        (start..start + range["length"].as_u64().expect("a number")).contains(&4096)
    });
    let first = first.expect("the second block");
    let number = |field: &str| first[field].as_u64().expect("a number");
    let image = fs::OpenOptions::new()
        .write(true)
        .open(&place.image)
        .expect("it is ours");
    let leaf = number("device_offset") + 4096 - number("offset");
    image
        .write_all_at(&[0xFF; 8], leaf + 400)
        .expect("it lies within");
    drop(image);
    let mount = place.mount(&["-o", "ro"]);
    for _ in 0..2 {
        let mut errors = Vec::new();
        let mut shown = 0;
        for entry in fs::read_dir(mount.path("many")).expect("it can be opened") {
            match entry {
                Ok(_) => shown += 1,
                Err(error) => errors.push(error.raw_os_error()),
            }
        }
        assert!((NAMES / 2..NAMES).contains(&shown), "{shown}");
        assert_eq!(errors, [Some(rustix::io::Errno::BADMSG.raw_os_error())]);
    }
    drop(mount);
}
