//! Container images that were given as plain archives and folders: refused, with the way to unpack
//! them, unless the kind is stated.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::images::{Workshop, complaint, names};
use super::layouts::{image, layers, layout};
use super::pack::{Packer, gzip, zstd};
use crate::common::{run, succeed, with_input};

/// A folder packed by the system's tar.
fn packed(folder: &Path, name: &str) -> PathBuf {
    let archive = folder.with_file_name(name);
    let mut tar = Command::new("tar");
    tar.arg("-C").arg(folder).arg("-cf").arg(&archive).arg(".");
    succeed(&mut tar);
    archive
}

/// Every archive is refused in every form, with this advice, and built as it is if that is stated.
fn is_refused(workshop: &Workshop, archive: &Path, advice: &str) {
    let bytes = std::fs::read(archive).expect("it was just made");
    for (name, bytes) in [
        ("plain.tar", bytes.clone()),
        ("a.tar.gz", gzip(&bytes)),
        ("a.tar.zst", zstd(&bytes)),
    ] {
        let path = workshop.write(name, &bytes);
        let told = complaint(&run(&mut workshop.build([&path])));
        names(&told, &path);
        let advice = advice.replace("FILE", &path.display().to_string());
        assert!(told.contains(&advice), "{told}");
        let literal = format!("tar:{}", path.display());
        assert!(told.contains(&literal), "{told}");
        workshop.is_bare();
        succeed(&mut workshop.build([&literal]));
        workshop.check();
        std::fs::remove_file(&workshop.image).expect("just built");
        let told = complaint(&with_input(&mut workshop.build(["-"]), &bytes));
        assert!(told.contains("tar:/dev/stdin"), "{told}");
        workshop.is_bare();
    }
}

#[test]
fn an_archive_of_a_layout_is_refused_with_the_way_to_unpack_it() {
    let workshop = Workshop::new();
    let only = image(&workshop, &layers(), "amd64");
    layout(&workshop, &[only]);
    let archive = packed(&workshop.path("layout"), "l1.tar");
    let advice = "mkdir layout && tar -xf FILE -C layout && pext4 build out.img oci:layout";
    is_refused(&workshop, &archive, advice);
    // Over another source as well.
    workshop.write("tree/file", b"x");
    let told = run(workshop.build([workshop.path("tree")]).arg(&archive));
    names(&complaint(&told), &archive);
    // A file is no layout, whatever is in it.
    let word = format!("oci:{}", archive.display());
    let told = complaint(&run(&mut workshop.build([word])));
    names(&told, &archive);
    let advice = advice.replace("FILE", &archive.display().to_string());
    assert!(told.contains(&advice), "{told}");
    assert!(told.contains("skopeo copy docker-archive:"), "{told}");
    workshop.is_bare();
    // What the advice unpacks is built.
    succeed(&mut workshop.build([workshop.path("layout")]));
    workshop.check();
    assert_eq!(workshop.cat("/etc/kept"), "low");
}

#[test]
fn an_archive_by_docker_save_is_refused_packed_or_not() {
    let workshop = Workshop::new();
    let layer = Packer::new().file("etc/name", b"x").finish();
    for (name, content) in [
        ("manifest.json", &b"[]"[..]),
        ("repositories", b"{}"),
        ("0123.json", b"{}"),
        ("4567/VERSION", b"1.0"),
        ("4567/layer.tar", &layer),
    ] {
        workshop.write(&format!("saved/{name}"), content);
    }
    let folder = workshop.path("saved");
    let archive = packed(&folder, "saved.tar");
    let advice = "skopeo copy docker-archive:FILE oci:layout";
    is_refused(&workshop, &archive, advice);
    let told = complaint(&run(&mut workshop.build([&folder])));
    names(&told, &folder);
    assert!(told.contains("skopeo copy docker-archive:"), "{told}");
    workshop.is_bare();
    succeed(&mut workshop.build([format!("dir:{}", folder.display())]));
    workshop.check();
    assert_eq!(workshop.cat("/4567/VERSION"), "1.0");
}

#[test]
fn a_layout_that_lacks_a_file_is_no_tree() {
    let workshop = Workshop::new();
    let layout_at = workshop.path("layout");
    for missing in ["index.json", "oci-layout"] {
        let only = image(&workshop, &layers(), "amd64");
        layout(&workshop, &[only]);
        std::fs::remove_file(layout_at.join(missing)).expect("it was just made");
        let told = complaint(&run(&mut workshop.build([&layout_at])));
        names(&told, &layout_at);
        assert!(
            told.contains(&format!("without its file {missing}")),
            "{told}"
        );
        workshop.is_bare();
        let literal = format!("dir:{}", layout_at.display());
        assert!(told.contains(&literal), "{told}");
        succeed(&mut workshop.build([&literal]));
        std::fs::remove_file(&workshop.image).expect("just built");
    }
    // A single one of the names says nothing.
    workshop.write("site/index.json", b"{}");
    workshop.write("store/blobs/sha256/x", b"x");
    for tree in ["site", "store"] {
        succeed(workshop.build(["-f"]).arg(workshop.path(tree)));
    }
}

/// As other tools write the name of an image.
#[test]
fn a_tag_behind_a_layout_has_an_option() {
    let workshop = Workshop::new();
    let only = image(&workshop, &layers(), "amd64");
    layout(&workshop, &[only]);
    let layout_at = workshop.path("layout");
    let word = format!("oci:{}:latest", layout_at.display());
    let told = complaint(&run(&mut workshop.build([word])));
    let advice = format!("`oci:{} --tag latest`", layout_at.display());
    assert!(told.contains(&advice), "{told}");
    workshop.is_bare();
    let told = complaint(&run(&mut workshop.build(["oci:/none:latest"])));
    assert!(!told.contains("--tag"), "{told}");
}
