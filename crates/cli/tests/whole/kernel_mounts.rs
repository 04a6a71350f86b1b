//! Images that the kernel has mounted: they are not written, under whatever name, and who reads
//! them is told.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{LET_GO, Place, has, pext4, run, succeed};
use crate::kernel::{KernelMount, Loop, Refused, refused};

#[test]
fn what_the_kernel_has_mounted_is_refused_under_every_name() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    let (Some(device), Some(second)) = (Loop::of(&place, &[]), Loop::of(&place, &[])) else {
        return;
    };
    // Neither the bytes of this name nor the blank in that of the other one may hide anything.
    let strange = place.point.with_file_name(OsStr::from_bytes(b"caf\xe9"));
    let none = Path::new("none");
    let _strange = KernelMount::of(&["-t", "tmpfs"], none, strange);
    let directory = place.point.with_file_name("by the kernel");
    let Some(kernel) = KernelMount::of(&[], &device.0, directory.clone()) else {
        return;
    };
    let _other = Refused::beside(&place);
    let on = format!("mounted on {}", directory.display());
    let by_loop = format!("the kernel has it {on} by a loop device");
    refused("build", &place.image, &place, &by_loop);
    for command in ["mount", "mkfs", "mkdir"] {
        refused(
            command,
            &place.image,
            &place,
            &format!("the kernel has it {on} by a loop device"),
        );
        refused(
            command,
            &device.0,
            &place,
            &format!("the kernel has it {on};"),
        );
        refused(
            command,
            &second.0,
            &place,
            &format!("the file behind it, {on}"),
        );
    }
    drop(kernel);
    succeed(pext4(["mkdir"]).arg(&second.0).arg("/name"));
    place.check();
}

/// The path that the system shows of a device's file need not lead to it, and a loop device may be
/// on another one.
#[test]
fn a_file_that_the_kernel_has_mounted_is_known_without_its_path() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    let second_name = place.image.with_extension("second");
    fs::hard_link(&place.image, &second_name).unwrap();
    let Some(lower) = Loop::on(&second_name, &[]) else {
        return;
    };
    fs::remove_file(&second_name).unwrap();
    let Some(upper) = Loop::on(&lower.0, &[]) else {
        return;
    };
    let directory = place.point.with_file_name("by the kernel");
    let _other = Refused::beside(&place);
    let by_loop = format!(
        "the kernel has it mounted on {} by a loop device",
        directory.display()
    );
    for device in [&lower, &upper] {
        // Another file with the old name is another file.
        for is_other_there in [false, true] {
            if is_other_there {
                succeed(pext4(["mkfs", "-q", "--size", "16M"]).arg(&second_name));
            }
            let Some(kernel) = KernelMount::of(&[], &device.0, directory.clone()) else {
                return;
            };
            for command in ["mount", "mkdir"] {
                refused(command, &place.image, &place, &by_loop);
            }
            if is_other_there {
                succeed(pext4(["mkdir"]).arg(&second_name).arg("/name"));
                fs::remove_file(&second_name).unwrap();
            }
            drop(kernel);
        }
    }
    succeed(pext4(["mkdir"]).arg(&lower.0).arg("/name"));
    // Nor can the file be locked by its path; a server's lock of it counts all the same.
    let mount = place.mount(&[]);
    for device in [&lower, &upper] {
        refused("mkdir", &device.0, &place, "the file behind it");
    }
    mount.unmount_unchecked();
    place.check();
}

/// This process's table does not show it.
#[test]
fn what_the_kernel_has_mounted_in_another_namespace_is_refused() {
    const SCRIPT: &str = r#"mount "$0" "$1" || exit; echo; read _; umount "$1""#;
    let Some(place) = Place::new("16M") else {
        return;
    };
    if !has("unshare") {
        return;
    }
    let Some(device) = Loop::of(&place, &[]) else {
        return;
    };
    let directory = place.point.with_file_name("by the kernel");
    fs::create_dir(&directory).unwrap();
    let mut other = Command::new("unshare")
        .args(["-m", "--propagation", "private"])
        .args(["sh", "-c", &format!("{LET_GO}{SCRIPT}")])
        .args([&device.0, &directory])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut said = BufReader::new(other.stdout.take().unwrap());
    said.read_line(&mut line).unwrap();
    let uses = format!("the kernel uses it by {}", device.0.display());
    let _other = Refused::beside(&place);
    for command in ["mount", "mkdir"] {
        if line.is_empty() {
            eprintln!("SKIPPED: nothing can be mounted in another namespace");
        } else {
            refused(command, &place.image, &place, &uses);
        }
    }
    drop(other.stdin.take());
    other.wait().unwrap();
    succeed(pext4(["mkdir"]).arg(&place.image).arg("/name"));
    place.check();
}

#[test]
fn a_check_beside_a_mount_by_the_kernel_says_that_it_means_nothing() {
    let place = Place::empty();
    succeed(pext4(["mkfs", "-q", "--size", "16M"]).arg(&place.image));
    let Some(device) = Loop::of(&place, &[]) else {
        return;
    };
    let check = |image: &Path| {
        let output = run(pext4(["check", "--json"]).arg(image));
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let warning = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), report["mounted"].clone(), warning)
    };
    assert_eq!(check(&place.image), (Some(0), false.into(), String::new()));
    let directory = place.point.with_file_name("by the kernel");
    let Some(_mount) = KernelMount::of(&["-o", "ro"], &device.0, directory.clone()) else {
        return;
    };
    let second = Loop::of(&place, &[]).expect("there was one before");
    for image in [&place.image, &device.0, &second.0] {
        let (status, mounted, warning) = check(image);
        assert_eq!((status, mounted), (Some(0), true.into()), "{warning}");
        let says = format!("the kernel has it mounted on {}", directory.display());
        assert!(warning.contains(&says), "{}: {warning}", image.display());
        assert_eq!(warning.lines().count(), 1, "{warning}");
    }
}

/// What the kernel has not written yet is not in the image, so what is read may lack it.
#[test]
fn reading_beside_a_mount_by_the_kernel_says_that_it_may_lack_something() {
    let place = Place::empty();
    succeed(pext4(["mkfs", "-q", "--size", "16M"]).arg(&place.image));
    let other = Place::empty();
    succeed(pext4(["mkfs", "-q", "--size", "16M"]).arg(&other.image));
    succeed(pext4(["touch", "-q"]).arg(&place.image).arg("/file"));
    let Some(device) = Loop::of(&place, &[]) else {
        return;
    };
    let (image, folder) = (place.image.as_os_str(), place.point.clone());
    let told = |words: &[&OsStr]| {
        // `get` makes this.
        let _ = fs::remove_file(folder.join("got"));
        let output = run(&mut pext4(words));
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{words:?}: {told}");
        told
    };
    let got = place.point.join("got");
    let to_other = other.image.as_os_str();
    let word = OsStr::new;
    let reading: [&[&OsStr]; 9] = [
        &[word("ls"), image],
        &[word("tree"), image],
        &[word("info"), image],
        &[word("info"), word("--json"), image],
        &[word("cat"), image, word("/file")],
        &[word("stat"), image, word("/file")],
        &[word("export"), image, word("-o"), word("/dev/null")],
        &[word("get"), image, word("/file"), got.as_os_str()],
        &[
            word("cp"),
            to_other,
            word("--from"),
            image,
            word("/file"),
            word("/"),
        ],
    ];
    let quiet: [&[&OsStr]; 3] = [
        &[
            word("export"),
            word("-q"),
            image,
            word("-o"),
            word("/dev/null"),
        ],
        &[
            word("get"),
            word("-q"),
            image,
            word("/file"),
            got.as_os_str(),
        ],
        &[
            word("cp"),
            word("-q"),
            to_other,
            word("--from"),
            image,
            word("/file"),
            word("/"),
        ],
    ];
    for words in reading {
        assert_eq!(told(words), "", "{words:?}");
    }
    let directory = place.point.with_file_name("by the kernel");
    let Some(mount) = KernelMount::of(&[], &device.0, directory.clone()) else {
        return;
    };
    let says = format!("the kernel has it mounted on {}", directory.display());
    for words in reading {
        let told = told(words);
        assert!(
            told.contains(&says) && told.contains("may lack"),
            "{words:?}: {told}"
        );
        assert_eq!(told.lines().count(), 1, "{words:?}: {told}");
    }
    for words in quiet {
        assert_eq!(told(words), "", "{words:?}");
    }
    drop(mount);
    // Of a mount that does not write, everything is in the image.
    let Some(_mount) = KernelMount::of(&["-o", "ro"], &device.0, directory) else {
        return;
    };
    for words in reading {
        assert_eq!(told(words), "", "{words:?}");
    }
}
