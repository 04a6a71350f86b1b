//! Which of the images of a layout is built, and that it is one.

use std::fs;
use std::path::Path;

use pext4_image::build::{Builder, Platform, Source};
use serde_json::{Value, json};

use crate::archives::Packer;
use crate::layouts::{LAYER, Layout};
use crate::oracle::check;

fn build(path: &Path, image: &Path) -> pext4_image::build::Result<()> {
    let source = Source::OciLayout(path.to_owned());
    Builder::new().source(source).build(image).map(drop)
}

#[test]
fn one_of_several_images_is_chosen() {
    let folder = tempfile::tempdir().unwrap();
    let layout = Layout::new(folder.path().join("layout"));
    let mut manifests: Vec<Value> = ["amd64", "arm64"]
        .into_iter()
        .map(|architecture| {
            let bytes = Packer::new().file(architecture, b"x").finish();
            let mut image = layout.image(&[layout.blob(&bytes, LAYER)]);
            image["platform"] = json!({"os": "linux", "architecture": architecture});
            image
        })
        .collect();
    let mut attestation = layout.image(&[layout.blob(b"text", "text")]);
    attestation["platform"] = json!({"os": "unknown", "architecture": "unknown"});
    manifests.push(attestation);
    // In a nested index, as registries store them.
    let inner = json!({"schemaVersion": 2, "manifests": manifests});
    let inner = serde_json::to_vec(&inner).unwrap();
    layout.index(&[layout.blob(&inner, "application/vnd.oci.image.index.v1+json")]);
    let image = folder.path().join("image");
    let error = build(&layout.path, &image).unwrap_err().to_string();
    assert!(error.contains("linux/amd64 linux/arm64"), "{error}");
    let with = |platform: &str| {
        Builder::new()
            .source(Source::OciLayout(layout.path.clone()))
            .platform(Platform::parse(platform).unwrap())
            .build(&image)
    };
    assert!(with("linux/riscv64").is_err());
    assert_eq!(with("linux/arm64").unwrap().names, 1);
    check(&image);
    std::fs::remove_file(&image).unwrap();
    assert!(with("linux/arm64/v9").is_err());
    assert!(with("linux/amd64/v2").is_err());
    // The variant that everybody means by the architecture alone.
    assert_eq!(with("linux/arm64/v8").unwrap().names, 1);
}

/// Tools that store a single image do not state its platform in the index; its configuration does.
#[test]
fn an_image_for_another_platform_is_not_taken_for_the_one_that_is_wanted() {
    let folder = tempfile::tempdir().unwrap();
    let layout = Layout::new(folder.path().join("layout"));
    let image_for = |architecture: &str| {
        let bytes = Packer::new().file(architecture, b"x").finish();
        let config = json!({"os": "linux", "architecture": architecture, "rootfs": {}});
        let config = serde_json::to_vec(&config).unwrap();
        let config = layout.blob(&config, "application/vnd.oci.image.config.v1+json");
        let manifest = json!({"config": config, "layers": [layout.blob(&bytes, LAYER)]});
        let manifest = serde_json::to_vec(&manifest).unwrap();
        layout.blob(&manifest, "application/vnd.oci.image.manifest.v1+json")
    };
    let image = folder.path().join("image");
    let with = |platform: &str| {
        Builder::new()
            .source(Source::OciLayout(layout.path.clone()))
            .platform(Platform::parse(platform).unwrap())
            .build(&image)
    };
    layout.index(&[image_for("amd64")]);
    let error = with("linux/arm64").unwrap_err().to_string();
    assert!(error.contains("but for: linux/amd64"), "{error}");
    layout.index(&[image_for("amd64"), image_for("arm64")]);
    assert_eq!(with("linux/arm64").unwrap().names, 1);
    check(&image);
    let listed = std::process::Command::new("debugfs")
        .args(["-R", "ls -p /"])
        .arg(&image)
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&listed.stdout).contains("/arm64/"));
}

/// Lists of parts and signatures are stored like images, beside the one that they are about.
#[test]
fn an_artifact_is_no_image_to_choose_from() {
    let folder = tempfile::tempdir().unwrap();
    let layout = Layout::new(folder.path().join("layout"));
    let manifest = |text: Value| {
        let text = serde_json::to_vec(&text).unwrap();
        layout.blob(&text, "application/vnd.oci.image.manifest.v1+json")
    };
    let layer_of = |name: &str| layout.blob(&Packer::new().file(name, b"x").finish(), LAYER);
    let only = layout.image(&[layer_of("a")]);
    let empty = layout.blob(b"{}", "application/vnd.oci.empty.v1+json");
    let config = layout.blob(b"{}", "application/vnd.oci.image.config.v1+json");
    let text = |kind: &str| [layout.blob(b"{ }", kind)];
    let mut named = layout.image(&[layer_of("b")]);
    named["artifactType"] = json!("application/x");
    let artifacts = [
        // As ORAS, as cosign, with files in it, and as the index says.
        manifest(json!({
            "artifactType": "application/spdx+json", "subject": only, "config": empty,
            "layers": text("text/spdx+json")
        })),
        manifest(json!({
            "config": config,
            "layers": text("application/vnd.dev.cosign.simplesigning.v1+json")
        })),
        manifest(json!({"config": empty, "layers": [layer_of("c")]})),
        named,
    ];
    let image = folder.path().join("image");
    let built = || {
        let source = Source::OciLayout(layout.path.clone());
        Builder::new().source(source).replace(true).build(&image)
    };
    for artifact in &artifacts {
        for order in [[&only, artifact], [artifact, &only]] {
            layout.index(&order.map(Value::clone));
            assert_eq!(built().expect("one image").names, 1, "{artifact}");
            check(&image);
            let platform = Platform::parse("linux/amd64").unwrap();
            let source = Source::OciLayout(layout.path.clone());
            let builder = Builder::new().source(source).platform(platform);
            builder.replace(true).build(&image).expect("one image");
        }
    }
    layout.index(&artifacts);
    let error = built().unwrap_err().to_string();
    assert!(error.contains("several images"), "{error}");
    layout.index(&[
        only.clone(),
        layout.image(&[layer_of("d")]),
        artifacts[0].clone(),
    ]);
    let error = built().unwrap_err().to_string();
    assert!(error.contains("several images"), "{error}");
    // Where it is the only one, its layers decide.
    layout.index(&artifacts[3..]);
    assert_eq!(built().expect("files").names, 1);
}

/// A layout may lack what is needed for other images only.
#[test]
fn blobs_of_images_that_are_not_selected_may_be_missing() {
    const INDEX: &str = "application/vnd.oci.image.index.v1+json";
    const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
    let folder = tempfile::tempdir().unwrap();
    let layout = Layout::new(folder.path().join("layout"));
    let image = folder.path().join("image");
    let tagged = |mut of: Value, tag: &str| {
        of["annotations"] = json!({"org.opencontainers.image.ref.name": tag});
        of
    };
    let missing = |kind: &str| {
        let digest = format!("sha256:{}", "2".repeat(64));
        // Far more than all documents may have together.
        json!({"mediaType": kind, "digest": digest, "size": 1_u64 << 40})
    };
    let layer = layout.blob(&Packer::new().file("a", b"x").finish(), LAYER);
    let mut whole = tagged(layout.image(std::slice::from_ref(&layer)), "t1");
    whole["platform"] = json!({"os": "linux", "architecture": "amd64"});
    let config = missing("application/vnd.oci.image.config.v1+json");
    let manifest = json!({"config": config, "layers": [layer]});
    let unknown = layout.blob(manifest.to_string().as_bytes(), MANIFEST);
    for other in [missing(INDEX), missing(MANIFEST), unknown] {
        let is_index = other["mediaType"] == INDEX;
        let manifests = [whole.clone(), tagged(other, "t2")];
        let built = |tag: Option<&str>, platform: Option<&str>| {
            layout.index(&manifests);
            let mut builder = Builder::new().source(Source::OciLayout(layout.path.clone()));
            if let Some(tag) = tag {
                builder = builder.tag(tag);
            }
            if let Some(platform) = platform {
                builder = builder.platform(Platform::parse(platform).unwrap());
            }
            builder.replace(true).build(&image)
        };
        for (tag, platform) in [
            (Some("t1"), None),
            (None, Some("linux/amd64")),
            (Some("t1"), Some("linux/amd64")),
        ] {
            let names = built(tag, platform).unwrap().names;
            assert_eq!(names, 1, "{manifests:?}: {tag:?} {platform:?}");
        }
        let told = built(None, None).unwrap_err().to_string();
        assert!(told.ends_with("choose one with --tag: t1 t2"), "{told}");
        // What may be the one that is wanted is named.
        for (tag, platform) in [
            (Some("t2"), Some("linux/amd64")),
            (None, Some("linux/arm64")),
        ] {
            let told = built(tag, platform).unwrap_err().to_string();
            assert!(told.contains("/2222"), "{manifests:?}: {told}");
        }
        let told = built(Some("t3"), None).unwrap_err().to_string();
        assert_eq!(told.contains("/2222"), is_index, "{manifests:?}: {told}");
    }
    layout.index(&[whole, missing(INDEX)]);
    let told = build(&layout.path, &folder.path().join("none")).unwrap_err();
    assert!(told.to_string().contains("/2222"), "{told}");
}

#[test]
fn selections_need_a_layout() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let platform = Platform::parse("linux/amd64").unwrap();
    for builder in [
        Builder::new().platform(platform),
        Builder::new().tag("latest"),
    ] {
        let source = Source::Directory(folder.path().to_owned());
        let error = builder.source(source).build(&image).unwrap_err();
        assert!(error.to_string().contains("OCI layout"), "{error}");
        assert!(!image.exists());
    }
}

#[test]
fn one_of_several_tags_is_chosen() {
    let folder = tempfile::tempdir().unwrap();
    let layout = Layout::new(folder.path().join("layout"));
    let manifests: Vec<Value> = ["latest", "v1", "v2"]
        .into_iter()
        .map(|tag| {
            // Two of them are one image.
            let name = if tag == "latest" { "v2" } else { tag };
            let bytes = Packer::new().file(name, b"x").file("y", b"").finish();
            let mut image = layout.image(&[layout.blob(&bytes, LAYER)]);
            image["platform"] = json!({"os": "linux", "architecture": "amd64"});
            image["annotations"] = json!({"org.opencontainers.image.ref.name": tag});
            image
        })
        .collect();
    layout.index(&manifests);
    let image = folder.path().join("image");
    let error = build(&layout.path, &image).unwrap_err().to_string();
    assert!(
        error.ends_with("choose one with --tag: latest v1 v2"),
        "{error}"
    );
    let with = |tag: &str| {
        Builder::new()
            .source(Source::OciLayout(layout.path.clone()))
            .tag(tag)
            .replace(true)
            .build(&image)
    };
    let error = with("v3").unwrap_err().to_string();
    assert!(
        error.ends_with("no image of that tag, but: latest v1 v2"),
        "{error}"
    );
    let mut nameless = manifests[0].clone();
    nameless["annotations"] = json!({});
    layout.index(&[nameless]);
    let error = with("v3").unwrap_err().to_string();
    assert!(
        error.ends_with("no image of that tag: none of its images has one"),
        "{error}"
    );
    layout.index(&manifests);
    let (one, two, latest) = (with("v1"), with("v2"), with("latest"));
    assert_eq!(two.unwrap().uuid, latest.unwrap().uuid);
    assert_eq!(one.unwrap().names, 2);
    // One image with several names needs no selection.
    layout.index(&[manifests[0].clone(), manifests[2].clone()]);
    fs::remove_file(&image).unwrap();
    build(&layout.path, &image).unwrap();
    check(&image);
}

/// `docker save` writes only the tag as `ref.name`, which several images may share, and the whole
/// name beside it.
#[test]
fn images_of_one_tag_are_chosen_by_their_whole_names() {
    let folder = tempfile::tempdir().unwrap();
    let layout = Layout::new(folder.path().join("layout"));
    let image = folder.path().join("image");
    let manifests = ["alpine", "busybox"].map(|name| {
        let bytes = Packer::new().file(name, b"x").finish();
        let mut image = layout.image(&[layout.blob(&bytes, LAYER)]);
        image["annotations"] = json!({
            "io.containerd.image.name": format!("docker.io/library/{name}:latest"),
            "org.opencontainers.image.ref.name": "latest",
        });
        image
    });
    layout.index(&manifests);
    let with = |tag: &str| {
        let source = Source::OciLayout(layout.path.clone());
        Builder::new().source(source).tag(tag).build(&image)
    };
    let error = with("latest").unwrap_err().to_string();
    let names = "docker.io/library/alpine:latest docker.io/library/busybox:latest";
    assert!(error.ends_with(&format!("with --tag: {names}")), "{error}");
    with("docker.io/library/busybox:latest").unwrap();
    check(&image);
    fs::remove_file(&image).unwrap();
    // The name of an index is that of its images, and one of a name of its own keeps it.
    let mut index = layout.blob(
        json!({"schemaVersion": 2, "manifests": manifests})
            .to_string()
            .as_bytes(),
        "application/vnd.oci.image.index.v1+json",
    );
    index["annotations"] = json!({"org.opencontainers.image.ref.name": "both"});
    layout.index(&[index]);
    with("docker.io/library/alpine:latest").unwrap();
    assert!(with("both").is_err(), "the images have a tag of their own");
}

#[test]
fn layers_that_hold_no_files_are_named_by_their_type() {
    let folder = tempfile::tempdir().unwrap();
    let layout = Layout::new(folder.path().join("layout"));
    let image = folder.path().join("image");
    let bytes = Packer::new().file("a", b"x").finish();
    for (kind, problem) in [
        (
            "application/vnd.in-toto+json",
            Some("is no archive of files"),
        ),
        (
            "application/vnd.oci.image.layer.v1.tar+gzip+encrypted",
            Some("is encrypted"),
        ),
        ("application/vnd.oci.image.layer.v1.tar+gzip", None),
        ("application/vnd.docker.image.rootfs.diff.tar.gzip", None),
        ("", None),
    ] {
        layout.index(&[layout.image(&[layout.blob(&bytes, kind)])]);
        match (build(&layout.path, &image), problem) {
            (Ok(()), None) => fs::remove_file(&image).unwrap(),
            (Err(error), Some(problem)) => {
                let error = error.to_string();
                assert!(error.contains(problem) && error.contains(kind), "{error}");
            }
            (result, _) => panic!("{kind}: {result:?}"),
        }
    }
}
