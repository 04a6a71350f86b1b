//! A file system in a partition of a disk image: mounted, read, changed, resized and checked at an
//! offset.
//! What lies before and behind it stays as it was.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{Place, fail, has, pext4, run, succeed};

/// Where the partition begins and how long it is, in bytes.
const START: usize = 3 << 20;
const LENGTH: usize = 32 << 20;
const DISK: usize = 40 << 20;
/// What the rest of the disk is full of.
const OTHER: u8 = 0xEE;

/// Makes the image of a place a disk with one partition, which has an ext4 with a file.
fn partition(place: &Place) {
    let image = place.image.with_file_name("partition");
    succeed(pext4(["mkfs", "-q", "--size", "32M"]).arg(&image));
    let host = place.image.with_file_name("host");
    fs::write(&host, b"from the host\n").expect("a fresh place");
    succeed(pext4(["put"]).arg(&image).arg(&host).arg("/old"));
    let mut disk = vec![OTHER; DISK];
    disk[..512].copy_from_slice(&table(LENGTH));
    disk[START..START + LENGTH].copy_from_slice(&fs::read(&image).expect("it was made"));
    fs::write(&place.image, disk).expect("there is room");
}

/// A first sector with a partition of Linux, of this many bytes, as the second of four.
fn table(length: usize) -> [u8; 512] {
    table_of(START, length)
}

fn table_of(start: usize, length: usize) -> [u8; 512] {
    let mut sector = [0; 512];
    sector[462 + 4] = 0x83;
    let sectors = [start, length].map(|bytes| {
        u32::try_from(bytes / 512)
            .expect("a small disk")
            .to_le_bytes()
    });
    sector[462 + 8..462 + 16].copy_from_slice(&sectors.concat());
    sector[510..].copy_from_slice(&[0x55, 0xAA]);
    sector
}

/// Takes the partition out of the disk and has e2fsck judge it; the rest must be untouched.
fn judge(disk: &Path) {
    let bytes = fs::read(disk).expect("it is there");
    assert_eq!(bytes.len(), DISK);
    assert_eq!(bytes[..512], table(LENGTH));
    let rest = bytes[512..START].iter().chain(&bytes[START + LENGTH..]);
    assert!(
        rest.copied().all(|byte| byte == OTHER),
        "the rest of the disk"
    );
    judge_file_system(disk, &bytes[START..START + LENGTH]);
}

/// Has e2fsck judge a file system.
fn judge_file_system(disk: &Path, bytes: &[u8]) {
    if !has("e2fsck") {
        return;
    }
    let apart: PathBuf = disk.with_file_name("apart");
    fs::write(&apart, bytes).expect("there is room");
    let mut e2fsck = Command::new("e2fsck");
    let output = run(e2fsck.arg("-fn").arg(&apart));
    assert!(output.status.success(), "{output:?}");
}

/// Overwrites bytes of a disk.
fn overwrite(disk: &Path, at: u64, bytes: &[u8]) {
    let file = fs::OpenOptions::new().write(true).open(disk);
    let file = file.expect("it is there");
    file.write_all_at(bytes, at).expect("there is room");
}

fn offset() -> String {
    format!("--offset={START}")
}

#[test]
fn a_partition_is_mounted_by_its_offset() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    partition(&place);
    let said = fail(pext4(["mount"]).arg(&place.image).arg(&place.point), 1);
    assert!(said.contains("a disk with partitions"), "{said}");
    let place_of_it =
        format!("they begin at byte {START} (32 MiB): mount one with `-o offset=BYTES`");
    assert!(said.contains(&place_of_it), "{said}");
    let other = place.image.with_extension("other");
    succeed(pext4(["mkfs", "-q", "--size", "16M"]).arg(&other));
    let copy = fail(
        pext4(["cp"])
            .arg(&other)
            .arg("--from")
            .arg(&place.image)
            .args(["/old", "/"]),
        1,
    );
    assert!(copy.contains(&place_of_it), "{copy}");
    let measured = fail(
        pext4(["lab", "run", "mdtest", "--device"]).arg(&place.image),
        1,
    );
    assert!(measured.contains(&place_of_it), "{measured}");
    let nowhere = u64::MAX.to_string();
    fail(pext4(["ls", "--offset", &nowhere]).arg(&other), 2);

    let range = format!("offset={START},sizelimit={LENGTH},discard");
    let mount = place.mount(&["-o", &range]);
    assert_eq!(fs::read(mount.path("old")).unwrap(), b"from the host\n");
    fs::write(mount.path("large"), vec![7; 20_000_000]).unwrap();
    fs::write(mount.path("new"), b"1").unwrap();
    fs::remove_file(mount.path("large")).unwrap();
    let said = fail(pext4(["mount"]).arg(&place.image).arg(&place.point), 1);
    assert!(said.contains("it is mounted on"), "{said}");
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(table.contains(&format!("?offset={START}")), "{table}");
    mount.unmount_unchecked();
    judge(&place.image);

    let mount = place.mount(&["-o", &format!("ro,offset={START}")]);
    assert_eq!(fs::read(mount.path("new")).unwrap(), b"1");
    mount.unmount_unchecked();
}

#[test]
fn two_partitions_are_mounted_at_once_and_each_of_them_once() {
    const STARTS: [usize; 2] = [1 << 20, 20 << 20];
    let Some(place) = Place::new("16M") else {
        return;
    };
    let image = fs::read(&place.image).expect("it was made");
    let mut disk = vec![OTHER; DISK];
    for start in STARTS {
        disk[start..start + image.len()].copy_from_slice(&image);
    }
    fs::write(&place.image, disk).expect("there is room");
    let other = place.point.with_file_name("second");
    fs::create_dir(&other).expect("a fresh place");
    let [first, second] = STARTS.map(|start| format!("offset={start}"));
    let one = place.mount(&["-o", &first]);
    let mount = |range: &str, directory: &Path| {
        let mut mount = pext4(["mount", "-o", range]);
        mount.arg(&place.image).arg(directory);
        mount
    };
    succeed(&mut mount(&second, &other));
    let _unmounted = Unmounted(&other);
    fs::write(one.path("one"), b"1").expect("there is room");
    fs::write(other.join("two"), b"2").expect("there is room");
    let third = place.point.with_file_name("third");
    fs::create_dir(&third).expect("a fresh place");
    for range in [&second, &format!("ro,{second}")] {
        let said = fail(&mut mount(range, &third), 1);
        let there = format!("it is mounted on {}", other.display());
        assert!(said.contains(&there), "{said}");
    }
    // What may replace the file needs all of it.
    let mut remove = pext4(["rm"]);
    let said = fail(
        remove
            .arg(&place.image)
            .args(["/two", "--offset", &STARTS[1].to_string()]),
        1,
    );
    assert!(said.contains("another process or mount uses it"), "{said}");
    succeed(pext4(["umount"]).arg(&other));
    one.unmount_unchecked();
    for (start, name) in STARTS.iter().zip(["one", "two"]) {
        let mut list = pext4(["ls", "--offset", &start.to_string()]);
        let list = succeed(list.arg(&place.image));
        assert!(list.contains(name), "{list}");
        succeed(pext4(["check", "--offset", &start.to_string()]).arg(&place.image));
    }
}

/// Unmounts a directory that a failed test has left mounted.
struct Unmounted<'a>(&'a Path);

impl Drop for Unmounted<'_> {
    fn drop(&mut self) {
        run(Command::new("umount").args(["-q", "-l"]).arg(self.0));
    }
}

#[test]
fn a_range_must_lie_in_the_file_and_hold_the_file_system() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    partition(&place);
    let behind = DISK + 1;
    for (range, complaint) in [
        (format!("offset={behind}"), "cannot use a part of it"),
        (
            format!("offset={START},sizelimit={DISK}"),
            "cannot use a part of it",
        ),
        (format!("offset={START},sizelimit={}", LENGTH / 2), "image"),
    ] {
        let mut mount = pext4(["mount", "-o", &range]);
        let said = fail(mount.arg(&place.image).arg(&place.point), 1);
        assert!(said.contains(complaint), "{range}: {said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    judge(&place.image);
    // What follows the partition belongs to others, whatever the file system claims.
    let mut disk = fs::read(&place.image).expect("it is there");
    let half = u32::try_from(LENGTH / 2 / 512).expect("a small disk");
    disk[462 + 12..462 + 16].copy_from_slice(&half.to_le_bytes());
    fs::write(&place.image, disk).expect("there is room");
    let mut mount = pext4(["mount", "-o", &format!("offset={START}")]);
    let said = fail(mount.arg(&place.image).arg(&place.point), 1);
    assert!(said.contains("it was cut short"), "{said}");
    let said = fail(pext4(["ls", &offset()]).arg(&place.image), 1);
    assert!(said.contains("it was cut short"), "{said}");
}

#[test]
fn commands_read_and_change_a_partition() {
    let place = Place::empty();
    partition(&place);
    for words in [
        &["info"][..],
        &["ls"],
        &["tree"],
        &["mkdir"],
        &["get"],
        &["cat"],
    ] {
        let mut command = pext4(words);
        command.arg(&place.image);
        if !matches!(words[0], "info" | "ls" | "tree") {
            command.arg("/old");
        }
        let said = fail(&mut command, 1);
        assert!(said.contains("`--offset BYTES`"), "{words:?}: {said}");
    }
    let said = fail(pext4(["resize"]).arg(&place.image).arg("+1M"), 1);
    assert!(said.contains("`--offset BYTES`"), "{said}");
    let at = |words: &[&str], more: &[&str]| {
        let mut command = pext4(words);
        succeed(command.arg(&place.image).args(more).arg(offset()))
    };
    assert_eq!(at(&["cat"], &["/old"]), "from the host\n");
    assert!(at(&["info"], &[]).contains("32 MiB"));
    assert!(at(&["ls"], &[]).contains("old"));
    for by in ["journal", "clone"] {
        at(&["cp", "--by", by], &["/old", &format!("/by-{by}")]);
        judge(&place.image);
    }
    let copies = at(&["tree"], &[]);
    assert!(
        copies.contains("by-journal") && copies.contains("by-clone"),
        "{copies}"
    );
    at(&["check"], &[]);
    // The first directory entry's block is damaged where it lies in the partition.
    let extents = at(&["stat", "--json", "--extents"], &["/"]);
    let stat: serde_json::Value = serde_json::from_str(&extents).unwrap();
    let block = stat["extents"][0]["device_offset"].as_u64().unwrap();
    overwrite(&place.image, START as u64 + block, &[0xFF; 16]);
    fail(pext4(["check"]).arg(&place.image).arg(offset()), 4);
}

#[test]
fn a_copy_comes_from_a_partition_of_another_disk() {
    let place = Place::empty();
    partition(&place);
    let image = place.image.with_file_name("image");
    succeed(pext4(["mkfs", "-q", "--size", "16M"]).arg(&image));
    let start = START.to_string();
    let copy = |image: &Path| {
        let mut command = pext4(["cp", "--from-offset", &start, "--from"]);
        command.arg(&place.image).arg(image).args(["/old", "/copy"]);
        command
    };
    succeed(&mut copy(&image));
    let read = succeed(pext4(["cat"]).arg(&image).arg("/copy"));
    assert_eq!(read, "from the host\n");
    let told = fail(copy(&place.image).arg(offset()), 1);
    assert!(
        told.contains("it is the image that is being edited"),
        "{told}"
    );
    // Another part of the same file.
    let mut other = pext4(["cp", "--from-offset", "1M", "--from"]);
    other.arg(&place.image).arg(&place.image).arg(offset());
    let told = fail(other.args(["/old", "/copy"]), 1);
    assert!(
        told.contains("another part of it is being edited"),
        "{told}"
    );
    let mut alone = pext4(["cp", "--from-offset", &start]);
    fail(alone.arg(&image).args(["/copy", "/again"]), 2);
}

fn resize(place: &Place, words: &[&str]) -> Command {
    let mut command = pext4(["resize"]);
    command.arg(&place.image).args(words).arg(offset());
    command
}

#[test]
fn a_file_system_is_resized_within_its_partition() {
    let place = Place::empty();
    partition(&place);
    let said = succeed(&mut resize(&place, &["max"]));
    assert!(said.contains("it is 32 MiB already"), "{said}");
    let told = fail(&mut resize(&place, &["+1M"]), 1);
    assert!(told.contains("make the partition larger"), "{told}");
    judge(&place.image);
    for (size, way) in [
        (&["20M"][..], "on a clone"),
        (&["max"], "one transaction"),
        (&["20M", "--in-place"], "in place"),
        (&["max"], "one transaction"),
    ] {
        let planned = succeed(resize(&place, size).arg("--dry-run"));
        let said = succeed(&mut resize(&place, size));
        assert!(said.starts_with(planned.trim_end()), "{planned}{said}");
        assert!(said.contains(way), "{said}");
        assert!(said.contains(&format!("from byte {START} on")), "{said}");
        let bytes = if size[0] == "max" { "32 MiB" } else { "20 MiB" };
        assert!(said.contains(&format!("it is {bytes} now")), "{said}");
        judge(&place.image);
    }
    let read = pext4(["cat"])
        .arg(&place.image)
        .arg("/old")
        .arg(offset())
        .output();
    assert_eq!(read.expect("it runs").stdout, b"from the host\n");
}

/// The table says that what lies there belongs to the partition, such as the copy of a former
/// table. Without a table nothing says so.
#[test]
fn a_file_system_grows_over_other_bytes_only_in_its_partition() {
    let place = Place::empty();
    partition(&place);
    overwrite(&place.image, 0, &[0; 512]);
    let told = fail(&mut resize(&place, &["+1M"]), 1);
    let behind = format!("from byte {} on", START + LENGTH);
    assert!(
        told.contains(&behind) && told.contains("a partition"),
        "{told}"
    );
    let larger = LENGTH + (4 << 20);
    overwrite(&place.image, 0, &table(larger));
    let said = succeed(&mut resize(&place, &["max"]));
    assert!(said.contains("it is 36 MiB now"), "{said}");
    let bytes = fs::read(&place.image).expect("it is there");
    judge_file_system(&place.image, &bytes[START..START + larger]);
    assert!(bytes[START + larger..].iter().all(|&byte| byte == OTHER));
    assert_eq!(bytes.len(), DISK);
}

/// The next partition may be blank. What is in no table ends there, for all commands.
#[test]
fn a_file_system_in_no_table_ends_before_the_next_partition() {
    const OFFSET: &str = "--offset=1048576";
    const LEAST: usize = 16 << 20;
    let place = Place::empty();
    let image = place.image.with_file_name("partition");
    succeed(pext4(["mkfs", "-q", "--size", "16M"]).arg(&image));
    let image = fs::read(&image).expect("it was made");
    for (start, room) in [(20 << 20, 19), ((1 << 20) + LEAST, 16)] {
        let mut disk = vec![0; DISK];
        disk[..512].copy_from_slice(&table_of(start, DISK - start));
        disk[1 << 20..][..LEAST].copy_from_slice(&image);
        fs::write(&place.image, &disk).expect("there is room");
        let command = |words: &[&str]| {
            let mut command = pext4(words);
            command.arg(&place.image).arg(OFFSET);
            command
        };
        let told = fail(command(&["resize"]).arg("30M"), 1);
        let what = format!("its room ends before byte {start}");
        assert!(told.contains(&what), "{told}");
        let said = succeed(command(&["resize"]).arg("max"));
        assert!(said.contains(&format!("it is {room} MiB")), "{said}");
        succeed(command(&["mkdir"]).arg("/new"));
        assert!(succeed(&mut command(&["ls"])).contains("new"));
        succeed(&mut command(&["check"]));
        let bytes = fs::read(&place.image).expect("it is there");
        assert!(bytes[..1 << 20] == disk[..1 << 20]);
        assert!(bytes[start..].iter().all(|&byte| byte == 0));
    }
}

#[test]
fn what_has_no_room_for_a_file_system_is_told_as_what_it_is() {
    let place = Place::empty();
    partition(&place);
    let told = fail(&mut resize(&place, &["+1M"]), 1);
    assert!(
        told.contains("its partition has only 33554432 bytes"),
        "{told}"
    );
    assert!(told.contains("make the partition larger first"), "{told}");
    overwrite(&place.image, 0, &[0; 512]);
    let told = fail(&mut resize(&place, &["60M"]), 1);
    let length = START + (60 << 20);
    let advice = format!("make the file longer first (`truncate -s {length}`)");
    assert!(told.contains(&advice), "{told}");
    assert!(!told.contains("table"), "{told}");
}
