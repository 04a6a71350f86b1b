//! Container images in an OCI layout on the host: a directory with `oci-layout`, `index.json` and
//! blobs named by their digests.
//!
//! The layout is not trusted: digests are validated before they become file names, and every blob
//! that is used must be a regular file of the stated size and digest. It may be reached by a
//! symbolic link (Bazel makes such layouts), so a pipe or a device may be where a blob should be:
//! opening one must not wait, and none is read.

mod blob;
mod collection;
mod platform;
mod selection;

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use pext4_block::Progress;
use pext4_ondisk::shown::Shown;
use serde::Deserialize;

use super::error::{Error, Result};
pub(super) use blob::Blob;
use blob::{MAX_DOCUMENT_BYTES, open_regular};
pub use platform::Platform;
use platform::PlatformDescriptor;
pub(super) use selection::ImageSelector;

/// A value, or the default for `null`, which Go writes for an empty list or map.
fn or_default<'de, D, T>(deserializer: D) -> std::result::Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[derive(Deserialize)]
struct Index {
    #[serde(default, deserialize_with = "or_default")]
    manifests: Vec<Descriptor>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Manifest {
    /// What it is, if it is no image.
    #[serde(default, deserialize_with = "or_default")]
    artifact_type: String,
    #[serde(default, deserialize_with = "or_default")]
    layers: Vec<Descriptor>,
    /// The configuration, which contains the platform.
    config: Option<Descriptor>,
}

impl Manifest {
    /// Whether it is of something else than an image, such as a signature or a list of parts.
    fn is_artifact(&self) -> bool {
        let config = self.config.as_ref();
        !self.artifact_type.is_empty()
            || config.is_some_and(|config| config.media_type == EMPTY)
            || !self.layers.is_empty() && !self.layers.iter().any(Descriptor::may_hold_files)
    }

    /// Whether its configuration is that of an image, which may have no layers.
    fn is_surely_image(&self) -> bool {
        let config = self.config.as_ref();
        config.is_some_and(|config| IMAGE_CONFIGS.contains(&&*config.media_type))
    }
}

/// The types of an image's configuration, of OCI and of Docker.
const IMAGE_CONFIGS: [&str; 2] = [
    "application/vnd.oci.image.config.v1+json",
    "application/vnd.docker.container.image.v1+json",
];

/// The type of a configuration that says nothing, which no image has.
const EMPTY: &str = "application/vnd.oci.empty.v1+json";

#[derive(Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    /// What the manifest is of, if it is no image.
    #[serde(default, deserialize_with = "or_default")]
    artifact_type: String,
    #[serde(default, deserialize_with = "or_default")]
    media_type: String,
    digest: String,
    size: u64,
    platform: Option<PlatformDescriptor>,
    #[serde(default, deserialize_with = "or_default")]
    annotations: Annotations,
    /// The document that the layout lacks, so that the images of an index, or the platform of an
    /// image, are not known.
    #[serde(skip)]
    missing: Option<PathBuf>,
}

impl Descriptor {
    /// Whether a layer of this type may hold files. All types of layers with files have `tar` in
    /// their names; how one is compressed is found by its first bytes, since builders are not
    /// careful to say.
    fn may_hold_files(&self) -> bool {
        self.media_type.is_empty() || self.media_type.contains("tar")
    }

    /// Whether it is that of an index, which leads to several images.
    fn is_index(&self) -> bool {
        self.media_type.contains("index") || self.media_type.contains("manifest.list")
    }
}

/// The names of an image.
#[derive(Clone, Default, PartialEq, Eq, Hash, Deserialize)]
struct Annotations {
    /// The name, for many tools no more than the tag.
    #[serde(rename = "org.opencontainers.image.ref.name")]
    name: Option<String>,
    /// The name with registry and repository, which `docker save` and containerd add.
    #[serde(rename = "io.containerd.image.name")]
    full_name: Option<String>,
}

impl Annotations {
    /// Both names, the one that says most first.
    fn names(&self) -> impl Iterator<Item = &str> {
        self.full_name.iter().chain(&self.name).map(String::as_str)
    }

    /// Whether an image has this name.
    fn have(&self, tag: &str) -> bool {
        self.names().any(|name| name == tag)
    }

    /// The name that tells an image from others.
    fn shown(&self) -> Option<&str> {
        self.names().next()
    }

    /// The names of an image in an index that has names itself.
    fn or(self, index: &Self) -> Self {
        Self {
            name: self.name.or_else(|| index.name.clone()),
            full_name: self.full_name.or_else(|| index.full_name.clone()),
        }
    }
}

/// Whether a directory is an OCI layout.
pub(super) fn is_layout(folder: &Path) -> bool {
    folder.join("oci-layout").is_file() && folder.join("index.json").is_file()
}

/// The layers of the selected image, from the lowest; there may be none. Manifests are verified;
/// the caller verifies the layers.
pub(super) fn layers(
    layout: &Path,
    selector: ImageSelector<'_>,
    progress: &Progress,
) -> Result<Vec<Blob>> {
    if std::fs::metadata(layout).is_ok_and(|metadata| !metadata.is_dir()) {
        return Err(super::packed_image::not_a_folder(layout));
    }
    if let Some(error) = tag_behind(layout) {
        return Err(error);
    }
    let path = layout.join("index.json");
    let mut text = Vec::new();
    open_regular(&path)?
        .take(MAX_DOCUMENT_BYTES + 1)
        .read_to_end(&mut text)
        .map_err(|cause| Error::source(&path, "read it", cause))?;
    if text.len() as u64 > MAX_DOCUMENT_BYTES {
        return Err(Error::unsound(&path, "it is far too large for what it is"));
    }
    let index: Index = parse(&path, &text)?;
    let found = collection::all(layout, &path, index, selector, progress)?;
    let manifest = selector.select(&path, found)?;
    let blob = blob(layout, &path, &manifest)?;
    let manifest: Manifest = parse(&blob.path, &blob.read_document()?)?;
    if manifest.layers.is_empty() && !manifest.is_surely_image() {
        return Err(Error::unsound(
            &blob.path,
            "it is no image: it names no layers",
        ));
    }
    if let Some(config) = &manifest.config {
        let config = self::blob(layout, &blob.path, config)?;
        // An image is made without it, so that it may be missing, but not another one.
        if config.path.exists() {
            config.read_document()?;
        }
    }
    manifest
        .layers
        .iter()
        .map(|layer| {
            check_layer(&blob.path, layer)?;
            self::blob(layout, &blob.path, layer)
        })
        .collect()
}

/// Refuses layers that hold no files, or hide them: those of attestations, of modules, encrypted
/// ones.
fn check_layer(manifest: &Path, layer: &Descriptor) -> Result<()> {
    let kind = &*layer.media_type;
    let problem = match (layer.may_hold_files(), kind.ends_with("+encrypted")) {
        (true, false) => return Ok(()),
        (true, true) => "is encrypted",
        (false, _) => "is no archive of files",
    };
    let kind = kind.escape_default();
    let problem = format!("one of its layers {problem}: it has the type `{kind}`");
    Err(Error::unsound(manifest, problem))
}

/// An error for `LAYOUT:TAG`, as other tools name an image of a layout, if nothing has that path.
fn tag_behind(layout: &Path) -> Option<Error> {
    if layout.exists() {
        return None;
    }
    let bytes = layout.as_os_str().as_bytes();
    let colon = bytes.iter().rposition(|&byte| byte == b':')?;
    let (folder, tag) = (&bytes[..colon], &bytes[colon + 1..]);
    is_layout(Path::new(OsStr::from_bytes(folder))).then(|| {
        let problem = format!(
            "there is no such folder; for an image of the layout before the colon write `oci:{} --tag {}`",
            Shown(folder),
            Shown(tag)
        );
        Error::unsound(layout, problem)
    })
}

fn parse<'a, T: Deserialize<'a>>(path: &Path, text: &'a [u8]) -> Result<T> {
    serde_json::from_slice(text)
        .map_err(|error| Error::unsound(path, format!("it is not understood: {error}")))
}

fn blob(layout: &Path, named_in: &Path, descriptor: &Descriptor) -> Result<Blob> {
    Blob::stated(layout, &descriptor.digest, descriptor.size).ok_or_else(|| {
        let shown = descriptor.digest.escape_default();
        Error::unsound(
            named_in,
            format!("`{shown}` is no digest by sha256 or sha512"),
        )
    })
}
