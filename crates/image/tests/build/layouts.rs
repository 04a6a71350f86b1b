//! Images from container images.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use pext4_image::build::{Builder, Source};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::archives::Packer;
use crate::oracle::{Mounted, check, describe};

/// An OCI layout under construction.
pub struct Layout {
    pub path: PathBuf,
}

impl Layout {
    pub fn new(path: PathBuf) -> Self {
        fs::create_dir_all(path.join("blobs/sha256")).unwrap();
        fs::write(path.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
        Self { path }
    }

    pub fn blob(&self, bytes: &[u8], media_type: &str) -> Value {
        let hex = Sha256::digest(bytes)
            .iter()
            .fold(String::new(), |mut hex, byte| {
                write!(hex, "{byte:02x}").unwrap();
                hex
            });
        fs::write(self.path.join("blobs/sha256").join(&hex), bytes).unwrap();
        json!({"mediaType": media_type, "digest": format!("sha256:{hex}"), "size": bytes.len()})
    }

    pub fn image(&self, layers: &[Value]) -> Value {
        let manifest = json!({"schemaVersion": 2, "layers": layers});
        let text = serde_json::to_vec(&manifest).unwrap();
        self.blob(&text, "application/vnd.oci.image.manifest.v1+json")
    }

    pub fn index(&self, manifests: &[Value]) {
        let index = json!({"schemaVersion": 2, "manifests": manifests});
        fs::write(self.path.join("index.json"), index.to_string()).unwrap();
    }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

fn three_layers(layout: &Layout) -> Vec<Value> {
    let low = Packer::new()
        .directory("etc/")
        .file("etc/gone", b"low")
        .file("etc/kept", b"low")
        .file("etc/changed", b"low")
        .directory("opaque/sub/")
        .file("opaque/old", b"low")
        .file("opaque/sub/old", b"low")
        .directory("removed/tree/")
        .file("removed/tree/x", b"low")
        .finish();
    let middle = Packer::new()
        .file("etc/.wh.gone", b"")
        .file("etc/changed", b"middle")
        .file("opaque/sub/new", b"middle")
        .file("opaque/.wh..wh..opq", b"")
        .file(".wh.removed", b"")
        .file(".wh..wh.plnk/12.34", b"")
        .finish();
    let high = Packer::new()
        .file("removed/again", b"high")
        .entry(b'1', "etc/link", "etc/kept", b"")
        .finish();
    vec![
        layout.blob(&gzip(&low), LAYER),
        layout.blob(&middle, LAYER),
        layout.blob(&zstd::encode_all(&high[..], 1).unwrap(), LAYER),
    ]
}

fn build(path: &Path, image: &Path) -> pext4_image::build::Result<()> {
    let source = Source::at(path).expect("the layout just made");
    assert!(matches!(source, Source::OciLayout(_)));
    Builder::new().source(source).build(image).map(drop)
}

#[test]
fn layers_lie_over_one_another() {
    let folder = tempfile::tempdir().unwrap();
    let layout = Layout::new(folder.path().join("layout"));
    let layers = three_layers(&layout);
    layout.index(&[layout.image(&layers)]);
    let image = folder.path().join("image");
    build(&layout.path, &image).unwrap();
    check(&image);
    let Some(mounted) = Mounted::new(&image) else {
        return;
    };
    let lines = describe(mounted.path());
    let paths: Vec<&str> = lines.keys().map(|path| path.to_str().unwrap()).collect();
    assert_eq!(
        paths,
        [
            "",
            "etc",
            "etc/changed",
            "etc/kept",
            "etc/link",
            "opaque",
            "opaque/sub",
            "opaque/sub/new",
            "removed",
            "removed/again",
        ]
    );
    let read = |name: &str| fs::read_to_string(mounted.path().join(name)).unwrap();
    assert_eq!(read("etc/changed"), "middle");
    assert_eq!(read("etc/link"), "low");
}

/// The queues of later layers are full long before the first layer is applied.
#[test]
fn many_layers_wait_for_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let layout = Layout::new(folder.path().join("layout"));
    let layer = |number: usize| {
        let names =
            (0..if number == 0 { 5000 } else { 2500 }).map(|name| format!("{number}/{name}"));
        let packer = names.fold(Packer::new(), |packer, name| packer.file(&name, b""));
        let bytes = packer.finish();
        layout.blob(
            &if number.is_multiple_of(3) {
                gzip(&bytes)
            } else {
                bytes
            },
            LAYER,
        )
    };
    let layers: Vec<Value> = (0..30).map(layer).collect();
    layout.index(&[layout.image(&layers)]);
    let image = folder.path().join("image");
    let mut images = Vec::new();
    for threads in [1, 2, 8] {
        let builder = Builder::new().source(Source::at(&layout.path).unwrap());
        let summary = builder
            .threads(threads)
            .replace(true)
            .build(&image)
            .unwrap();
        assert_eq!(summary.names, 30 + 5000 + 29 * 2500);
        images.push(fs::read(&image).unwrap());
    }
    assert!(images.iter().all(|other| *other == images[0]));
}

#[test]
fn a_wrong_digest_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let layout = Layout::new(folder.path().join("layout"));
    let layers = three_layers(&layout);
    layout.index(&[layout.image(&layers)]);
    let image = folder.path().join("image");
    for layer in &layers {
        let digest = layer["digest"].as_str().unwrap();
        let blob = layout.path.join("blobs").join(digest.replace(':', "/"));
        let sound = fs::read(&blob).unwrap();
        let mut wrong = sound.clone();
        // Behind the end of a plain archive, or in a checksum that nothing else verifies.
        wrong.push(0);
        fs::write(&blob, &wrong).unwrap();
        let error = build(&layout.path, &image).unwrap_err().to_string();
        assert!(error.contains(&digest[7..]), "{error}");
        assert!(error.contains("bytes where"), "{error}");
        let last = sound.len() - 1;
        let mut wrong = sound.clone();
        wrong[last] ^= 1;
        fs::write(&blob, &wrong).unwrap();
        let error = build(&layout.path, &image).unwrap_err().to_string();
        assert!(error.contains(&digest[7..]), "{error}");
        fs::write(&blob, &sound).unwrap();
        assert!(!image.exists());
    }
    build(&layout.path, &image).unwrap();
}

#[test]
fn another_configuration_than_stated_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let layout = Layout::new(folder.path().join("layout"));
    let layers = three_layers(&layout);
    let config = layout.blob(b"{}", "application/vnd.oci.image.config.v1+json");
    let manifest = json!({"schemaVersion": 2, "layers": layers, "config": config});
    let text = serde_json::to_vec(&manifest).unwrap();
    layout.index(&[layout.blob(&text, "application/vnd.oci.image.manifest.v1+json")]);
    let image = folder.path().join("image");
    let digest = config["digest"].as_str().unwrap();
    let blob = layout.path.join("blobs").join(digest.replace(':', "/"));
    fs::write(&blob, b"[]").unwrap();
    let error = build(&layout.path, &image).unwrap_err().to_string();
    assert!(error.contains(&digest[7..]), "{error}");
    fs::remove_file(&blob).unwrap();
    build(&layout.path, &image).unwrap();
}

/// A directory that a whiteout removes takes along what is in it: neither its lists nor its times
/// are the image's.
#[test]
fn what_is_below_a_removed_directory_does_not_count() {
    let folder = tempfile::tempdir().unwrap();
    let layout = Layout::new(folder.path().join("layout"));
    let text = "user::rw-,user:0:r--,user:1000:r--,group::r--,mask::rw-,other::---";
    let rest = format!(" SCHILY.acl.access={text}\n");
    let record = format!("{}{rest}20 mtime=1500000000\n", rest.len() + 2);
    let lower = Packer::new()
        .directory("d")
        .entry(b'x', "header", "", record.as_bytes())
        .file("d/file", b"x")
        .file("kept", b"x")
        .finish();
    let upper = Packer::new().file(".wh.d", b"").finish();
    let layers = [lower, upper].map(|bytes| layout.blob(&bytes, LAYER));
    layout.index(&[layout.image(&layers)]);
    let image = folder.path().join("image");
    let lines = "uid 1000 0";
    let built = Builder::new()
        .source(Source::OciLayout(layout.path.clone()))
        .map(pext4_image::build::Map::parse(lines).unwrap())
        .build(&image);
    assert_eq!(built.unwrap().names, 1);
    check(&image);
    let bytes = fs::read(&image).unwrap();
    let superblock = bytes[1024..2048].try_into().unwrap();
    let superblock = pext4_ondisk::superblock::Superblock::decode(superblock).unwrap();
    assert!(superblock.make_time < 1_500_000_000);
}

#[test]
fn blobs_cannot_be_outside_the_layout() {
    let folder = tempfile::tempdir().unwrap();
    let layout = Layout::new(folder.path().join("layout"));
    layout.index(&[json!({"digest": "sha256:../../../../etc/passwd", "size": 1})]);
    let image = folder.path().join("image");
    let error = build(&layout.path, &image).unwrap_err().to_string();
    assert!(error.contains("no digest"), "{error}");
    layout.index(&[]);
    assert!(build(&layout.path, &image).is_err());
    fs::write(layout.path.join("index.json"), "{").unwrap();
    assert!(build(&layout.path, &image).is_err());
    assert!(!image.exists());
}

/// What is behind the part that is read could say something else.
#[test]
fn an_index_that_is_far_too_large_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let layout = Layout::new(folder.path().join("layout"));
    let layers = three_layers(&layout);
    layout.index(&[layout.image(&layers)]);
    let path = layout.path.join("index.json");
    let mut text = fs::read(&path).unwrap();
    text.resize((4 << 20) + 1, b' ');
    fs::write(&path, text).unwrap();
    let error = build(&layout.path, &folder.path().join("image")).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("index.json: it is far too large"), "{error}");
}

const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// The file of a blob.
fn file_of(layout: &Layout, blob: &Value) -> PathBuf {
    let digest = blob["digest"].as_str().unwrap();
    layout.path.join("blobs").join(digest.replace(':', "/"))
}

/// Opening a pipe without a writer would wait for ever, and a device may have no end.
#[test]
fn what_is_no_regular_file_is_no_part_of_a_layout() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    for part in ["index", "manifest", "layer"] {
        for is_pipe in [true, false] {
            let layout = Layout::new(folder.path().join(format!("{part} {is_pipe}")));
            let layers = three_layers(&layout);
            let manifest = layout.image(&layers);
            layout.index(std::slice::from_ref(&manifest));
            let path = match part {
                "index" => layout.path.join("index.json"),
                "manifest" => file_of(&layout, &manifest),
                _ => file_of(&layout, &layers[1]),
            };
            fs::remove_file(&path).unwrap();
            match is_pipe {
                true => {
                    let kind = rustix::fs::FileType::Fifo;
                    let mode = rustix::fs::Mode::from_raw_mode(0o644);
                    rustix::fs::mknodat(rustix::fs::CWD, &path, kind, mode, 0).unwrap();
                }
                false => std::os::unix::fs::symlink("/dev/zero", &path).unwrap(),
            }
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            let (sender, receiver) = std::sync::mpsc::channel();
            let source = Source::OciLayout(layout.path.clone());
            let builder = Builder::new().source(source);
            let image = image.clone();
            std::thread::spawn(move || sender.send(builder.build(&image).map(drop)));
            let built = receiver.recv_timeout(std::time::Duration::from_secs(60));
            let error = built.expect("it does not wait").unwrap_err().to_string();
            assert!(error.contains(&name), "{error}");
            assert!(error.contains("no regular file"), "{error}");
        }
    }
    assert!(!image.exists());
}

/// Some tools make layouts whose blobs are links into a store.
#[test]
fn a_blob_may_be_a_link_to_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let layout = Layout::new(folder.path().join("layout"));
    let layers = three_layers(&layout);
    layout.index(&[layout.image(&layers)]);
    for (number, layer) in layers.iter().enumerate() {
        let stored = folder.path().join(number.to_string());
        fs::rename(file_of(&layout, layer), &stored).unwrap();
        std::os::unix::fs::symlink(&stored, file_of(&layout, layer)).unwrap();
    }
    build(&layout.path, &folder.path().join("image")).unwrap();
}

fn index_of(layout: &Layout, manifests: &[Value]) -> Value {
    let index = json!({"schemaVersion": 2, "manifests": manifests});
    layout.blob(&serde_json::to_vec(&index).unwrap(), INDEX)
}

/// Each level refers to the next a thousand times: a thousand million images if each reference were
/// followed.
#[test]
fn a_repeated_index_is_read_once() {
    let folder = tempfile::tempdir().unwrap();
    let layout = Layout::new(folder.path().join("layout"));
    let archive = Packer::new().file("a", b"x").finish();
    let mut at = layout.image(&[layout.blob(&archive, LAYER)]);
    for _ in 0..4 {
        at = index_of(&layout, &vec![at; 1000]);
    }
    layout.index(&[at]);
    let image = folder.path().join("image");
    build(&layout.path, &image).unwrap();
    check(&image);
}

#[test]
fn a_layout_with_too_many_images_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let layout = Layout::new(folder.path().join("layout"));
    let image = folder.path().join("image");
    let refused = |manifests: &[Value], word: &str| {
        layout.index(manifests);
        let error = build(&layout.path, &image).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    };
    let archive = Packer::new().file("a", b"x").finish();
    let one = layout.image(&[layout.blob(&archive, LAYER)]);
    let many = index_of(&layout, &vec![one.clone(); 2000]);
    let named = |index: &Value, name: &str| {
        let mut index = index.clone();
        index["annotations"] = json!({"org.opencontainers.image.ref.name": name});
        index
    };
    let names = (0..1001).map(|number| named(&many, &number.to_string()));
    refused(&names.collect::<Vec<_>>(), "more than 10000 images");
    let none = index_of(&layout, &[]);
    let names = (0..1001).map(|number| named(&none, &number.to_string()));
    refused(&names.collect::<Vec<_>>(), "more than 1000 indexes");
    refused(&[named(&many, &"n".repeat(1025))], "more than 1024 bytes");
    let mut stated = none;
    stated["size"] = json!(65 << 20);
    refused(&[stated], "64 MiB");
}

/// Programs in Go write `null` for a map or a list that is empty.
#[test]
fn what_is_null_in_a_layout_is_empty() {
    let folder = tempfile::tempdir().unwrap();
    let layout = Layout::new(folder.path().join("layout"));
    let image = folder.path().join("image");
    let archive = Packer::new().file("a", b"x").finish();
    let mut layer = layout.blob(&archive, LAYER);
    layer["annotations"] = Value::Null;
    layer["platform"] = Value::Null;
    let mut one = layout.image(&[layer]);
    one["annotations"] = Value::Null;
    layout.index(&[one]);
    build(&layout.path, &image).unwrap();
    let manifest = json!({"schemaVersion": 2, "layers": null, "config": null});
    let text = serde_json::to_vec(&manifest).unwrap();
    layout.index(&[layout.blob(&text, "application/vnd.oci.image.manifest.v1+json")]);
    fs::remove_file(&image).unwrap();
    let error = build(&layout.path, &image).unwrap_err().to_string();
    assert!(error.contains("it names no layers"), "{error}");
}

#[test]
fn an_image_may_have_no_layers() {
    let folder = tempfile::tempdir().unwrap();
    let layout = Layout::new(folder.path().join("layout"));
    let image = folder.path().join("image");
    for (media_type, is_image) in [
        ("application/vnd.oci.image.config.v1+json", true),
        ("application/vnd.docker.container.image.v1+json", true),
        ("application/vnd.cncf.helm.config.v1+json", false),
    ] {
        let config = layout.blob(br#"{"os": "linux", "architecture": "amd64"}"#, media_type);
        let manifest = json!({"schemaVersion": 2, "config": config, "layers": []});
        let text = serde_json::to_vec(&manifest).unwrap();
        layout.index(&[layout.blob(&text, "application/vnd.oci.image.manifest.v1+json")]);
        let source = Source::OciLayout(layout.path.clone());
        let built = Builder::new().source(source).replace(true).build(&image);
        let Ok(summary) = built else {
            let error = built.unwrap_err().to_string();
            assert!(!is_image && error.contains("it names no layers"), "{error}");
            continue;
        };
        assert!(is_image, "{media_type}");
        assert_eq!(summary.names, 0);
        let [note] = &summary.notes[..] else {
            panic!("{:?}", summary.notes);
        };
        assert!(
            note.ends_with("it has no layers, so the root is empty"),
            "{note}"
        );
        check(&image);
    }
}

#[test]
fn names_in_a_layer_may_begin_at_the_root() {
    let folder = tempfile::tempdir().unwrap();
    let layout = Layout::new(folder.path().join("layout"));
    let image = folder.path().join("image");
    let with = |layer: Packer| {
        layout.index(&[layout.image(&[layout.blob(&layer.finish(), LAYER)])]);
        build(&layout.path, &image)
    };
    let link = |packer: Packer, to| packer.entry(b'1', "/nix/link", to, b"");
    let store = Packer::new()
        .directory("/")
        .directory("//nix/")
        .file("/nix/file", b"x");
    with(link(store, "/nix/file")).unwrap();
    check(&image);
    if let Some(mounted) = Mounted::new(&image) {
        assert_eq!(fs::read(mounted.path().join("nix/link")).unwrap(), b"x");
    }
    fs::remove_file(&image).unwrap();
    for outside in [
        Packer::new().file("/../out", b"x"),
        link(Packer::new(), "/../out"),
    ] {
        let error = with(outside).unwrap_err().to_string();
        assert!(error.contains("`..`"), "{error}");
    }
}
