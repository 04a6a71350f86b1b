//! Images from container images.

use std::fmt::Write as _;
use std::fs;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::images::{Workshop, complaint};
use super::pack::{Packer, gzip, zstd};
use crate::common::{pext4, run, succeed};

const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// A blob of the layout, and what says where it is.
fn blob(workshop: &Workshop, bytes: &[u8], media_type: &str) -> Value {
    let mut hex = String::new();
    for byte in Sha256::digest(bytes) {
        write!(hex, "{byte:02x}").expect("memory is enough");
    }
    workshop.write(&format!("layout/blobs/sha256/{hex}"), bytes);
    json!({"mediaType": media_type, "digest": format!("sha256:{hex}"), "size": bytes.len()})
}

/// An image of these layers, for a platform.
pub fn image(workshop: &Workshop, layers: &[Vec<u8>], architecture: &str) -> Value {
    let layers: Vec<Value> = layers
        .iter()
        .map(|layer| blob(workshop, layer, LAYER))
        .collect();
    let manifest = json!({"schemaVersion": 2, "layers": layers}).to_string();
    let mut image = blob(workshop, manifest.as_bytes(), MANIFEST);
    image["platform"] = json!({"os": "linux", "architecture": architecture});
    image
}

pub fn layout(workshop: &Workshop, images: &[Value]) {
    workshop.write("layout/oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#);
    let index = json!({"schemaVersion": 2, "manifests": images}).to_string();
    workshop.write("layout/index.json", index.as_bytes());
}

/// Three layers: the second takes away, the third puts something in its place.
pub fn layers() -> Vec<Vec<u8>> {
    let low = Packer::new()
        .file("etc/gone", b"low")
        .file("etc/kept", b"low")
        .file("etc/changed", b"low")
        .file("opaque/old", b"low")
        .file("opaque/sub/old", b"low")
        .file("removed/x", b"low")
        .finish();
    let middle = Packer::new()
        .file("etc/.wh.gone", b"")
        .file("etc/changed", b"middle")
        .file("opaque/sub/new", b"middle")
        .file("opaque/.wh..wh..opq", b"")
        .file(".wh.removed", b"")
        .finish();
    let high = Packer::new().file("removed/again", b"high").finish();
    vec![gzip(&low), middle, zstd(&high)]
}

#[test]
fn whiteouts_and_opaque_directories_take_away() {
    let workshop = Workshop::new();
    let only = image(&workshop, &layers(), "amd64");
    layout(&workshop, &[only]);
    succeed(&mut workshop.build([workshop.path("layout")]));
    workshop.check();
    assert_eq!(workshop.names("/"), ["etc", "opaque", "removed"]);
    assert_eq!(workshop.names("/etc"), ["changed", "kept"]);
    assert_eq!(workshop.names("/opaque"), ["sub"]);
    assert_eq!(workshop.names("/opaque/sub"), ["new"]);
    assert_eq!(workshop.names("/removed"), ["again"]);
    assert_eq!(workshop.cat("/etc/changed"), "middle");
    let first = fs::read(&workshop.image).expect("built");
    for threads in ["1", "4"] {
        let mut build = workshop.build(["--force", "--threads", threads]);
        succeed(build.arg(workshop.path("layout")));
        let again = fs::read(&workshop.image).expect("built");
        assert!(again == first, "{threads} threads");
    }
}

#[test]
fn a_platform_chooses_among_images() {
    let workshop = Workshop::new();
    let of = |name: &str| {
        let layer = Packer::new().file("name", name.as_bytes()).finish();
        image(&workshop, &[layer], name)
    };
    let images = [of("amd64"), of("arm64")];
    layout(&workshop, &images);
    let source = format!("oci:{}", workshop.path("layout").display());
    succeed(&mut workshop.build(["--platform", "linux/arm64", &source]));
    workshop.check();
    assert_eq!(workshop.cat("/name"), "arm64");
    let other = ["--force", "--platform", "linux/riscv64", &source];
    let told = complaint(&run(&mut workshop.build(other)));
    assert!(told.contains("amd64") || told.contains("riscv64"), "{told}");
}

#[test]
fn a_layer_that_is_not_what_was_stated_is_named() {
    let workshop = Workshop::new();
    let only = image(&workshop, &layers(), "amd64");
    layout(&workshop, &[only]);
    let manifest_and_layers = fs::read_dir(workshop.path("layout/blobs/sha256"));
    let layer = manifest_and_layers
        .expect("it is ours")
        .map(|entry| entry.expect("it is ours").path())
        .find(|path| {
            fs::read(path)
                .expect("it is ours")
                .starts_with(&[0x1F, 0x8B])
        })
        .expect("one layer is compressed by gzip");
    let mut bytes = fs::read(&layer).expect("it is ours");
    *bytes.last_mut().expect("it is not empty") ^= 1;
    fs::write(&layer, bytes).expect("it is ours");
    let told = complaint(&run(&mut workshop.build([workshop.path("layout")])));
    super::images::names(&told, &layer);
    workshop.is_bare();
}

/// Rules for names apply to the name that a whiteout hides, not to the whiteout's own name.
#[test]
fn excluding_does_not_bring_back_what_is_hidden() {
    let workshop = Workshop::new();
    let only = image(&workshop, &layers(), "amd64");
    layout(&workshop, &[only]);
    let exclude = [
        "--exclude",
        ".wh.*",
        "--exclude",
        "*.opq",
        "--exclude",
        "*gone",
    ];
    succeed(workshop.build(exclude).arg(workshop.path("layout")));
    workshop.check();
    assert_eq!(workshop.names("/etc"), ["changed", "kept"]);
    assert_eq!(workshop.names("/opaque"), ["sub"]);
    assert_eq!(workshop.names("/removed"), ["again"]);
}

/// Files of a layer in a directory with an opaque mark stay, wherever the mark is in the layer.
#[test]
fn the_place_of_a_mark_in_its_layer_does_not_matter() {
    let workshop = Workshop::new();
    let mut images = Vec::new();
    let entries = ["d/new", "d/sub/new", ".wh.d", "o/sub/new", "o/.wh..wh..opq"];
    for order in [[0, 1, 2, 3, 4], [2, 4, 0, 1, 3], [1, 3, 2, 4, 0]] {
        let low = Packer::new()
            .directory("d/")
            .directory("d/sub/")
            .file("d/sub/old", b"low")
            .file("d/old", b"low")
            .directory("o/sub/")
            .file("o/sub/old", b"low");
        let high = order.iter().fold(Packer::new(), |packer, &number| {
            packer.file(entries[number], b"high")
        });
        let only = image(&workshop, &[low.finish(), high.finish()], "amd64");
        layout(&workshop, &[only]);
        succeed(workshop.build(["--force"]).arg(workshop.path("layout")));
        workshop.check();
        assert_eq!(workshop.names("/d"), ["new", "sub"], "{order:?}");
        assert_eq!(workshop.names("/d/sub"), ["new"], "{order:?}");
        assert_eq!(workshop.stat("/d/sub")["mode"], "0755", "{order:?}");
        images.push(fs::read(&workshop.image).expect("built"));
    }
    assert!(
        images.windows(2).all(|two| two[0] == two[1]),
        "the order matters"
    );
}

/// A mark makes the directory in which it stands, whoever applies the layer.
#[test]
fn an_edit_makes_the_directories_of_marks_like_a_build() {
    let workshop = Workshop::new();
    let low = Packer::new()
        .file("hidden/x", b"low")
        .file("other/x", b"low")
        .finish();
    let marks = Packer::new()
        .file("new/deep/.wh.x", b"")
        .file("opaque/.wh..wh..opq", b"")
        .file("reserved/.wh..wh.plnk", b"")
        .file(".wh..wh.aufs/in/it", b"")
        .file("hidden/sub/.wh.y", b"")
        .file(".wh.hidden", b"")
        .file(".wh.other", b"")
        .finish();
    let listed = || {
        let folders = ["/", "/new", "/new/deep", "/opaque", "/reserved", "/hidden"];
        folders.map(|folder| workshop.names(folder))
    };
    let build = |layers: &[Vec<u8>]| {
        layout(&workshop, &[image(&workshop, layers, "amd64")]);
        succeed(workshop.build(["-f"]).arg(workshop.path("layout")));
        workshop.check();
    };
    build(&[low.clone(), marks.clone()]);
    let built = listed();
    assert_eq!(built[0], ["hidden", "new", "opaque", "reserved"]);
    assert_eq!(built[5], ["sub"]);
    build(&[low]);
    let layer = workshop.write("marks.tar", &marks);
    let mut edit = pext4(["edit", "-q", "--layer", "--tar"]);
    succeed(edit.arg(layer).arg(&workshop.image));
    workshop.check();
    assert_eq!(listed(), built);
}
