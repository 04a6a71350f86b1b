//! Container images in an OCI layout on the host: a directory with `oci-layout`, `index.json` and
//! blobs named by their digests.
//!
//! The layout is not trusted: digests are validated before they become file names, and every blob
//! that is used must be a regular file of the stated size and digest. It may be reached by a
//! symbolic link (Bazel makes such layouts), so a pipe or a device may be where a blob should be:
//! opening one must not wait, and none is read.

mod collection;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use pext4_ondisk::shown::Shown;
use rustix::fs::OFlags;
use serde::Deserialize;
use sha2::{Digest as _, Sha256, Sha512};

use super::error::{Error, ParseError, Result};
use super::progress::Progress;

/// Maximum size of an index or manifest in bytes.
const MAX_DOCUMENT_BYTES: u64 = 4 << 20;
/// Size of the buffer for hashing in bytes.
const CHUNK_BYTES: usize = 1 << 20;

/// An operating system and a processor, as container images name them: `linux/amd64`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Platform {
    /// The system, like `linux`.
    pub os: String,
    /// The processor, like `amd64` or `arm64`.
    pub architecture: String,
    /// The processor's variant, like `v8`; any if absent.
    pub variant: Option<String>,
}

impl Platform {
    /// Parses `OS/ARCHITECTURE` or `OS/ARCHITECTURE/VARIANT`.
    ///
    /// # Errors
    ///
    /// The text has another form. The message shows the form.
    pub fn parse(text: &str) -> std::result::Result<Self, ParseError> {
        let mut parts = text.split('/');
        match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some(os), Some(architecture), variant, None)
                if !os.is_empty() && !architecture.is_empty() =>
            {
                Ok(Self {
                    os: os.to_owned(),
                    architecture: architecture.to_owned(),
                    variant: variant.map(str::to_owned),
                })
            }
            _ => Err(ParseError(format!("`{text}`: write it like linux/amd64"))),
        }
    }
}

/// Selects an image of a layout.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ImageSelector<'a> {
    pub platform: Option<&'a Platform>,
    pub tag: Option<&'a str>,
}

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
struct Manifest {
    #[serde(default, deserialize_with = "or_default")]
    layers: Vec<Descriptor>,
    /// The configuration, which contains the platform.
    config: Option<Descriptor>,
}

#[derive(Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    #[serde(default, deserialize_with = "or_default")]
    media_type: String,
    digest: String,
    size: u64,
    platform: Option<PlatformDescriptor>,
    #[serde(default, deserialize_with = "or_default")]
    annotations: Annotations,
}

#[derive(Clone, Default, Deserialize)]
struct Annotations {
    /// The image's name or tag.
    #[serde(rename = "org.opencontainers.image.ref.name")]
    name: Option<String>,
}

#[derive(Clone, Deserialize)]
struct PlatformDescriptor {
    #[serde(default, deserialize_with = "or_default")]
    os: String,
    #[serde(default, deserialize_with = "or_default")]
    architecture: String,
    variant: Option<String>,
}

/// A blob with its stated size and digest.
#[derive(Clone, Debug)]
pub(super) struct Blob {
    pub path: PathBuf,
    digest: Digest,
    size: u64,
}

/// A valid digest.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Digest {
    algorithm: Algorithm,
    hex: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Algorithm {
    Sha256,
    Sha512,
}

impl Digest {
    fn parse(text: &str) -> Option<Self> {
        let (name, hex) = text.split_once(':')?;
        let (algorithm, length) = match name {
            "sha256" => (Algorithm::Sha256, 64),
            "sha512" => (Algorithm::Sha512, 128),
            _ => return None,
        };
        let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        (hex.len() == length && hex.bytes().all(is_hex)).then(|| Self {
            algorithm,
            hex: hex.to_owned(),
        })
    }

    fn folder(&self) -> &'static str {
        match self.algorithm {
            Algorithm::Sha256 => "sha256",
            Algorithm::Sha512 => "sha512",
        }
    }
}

/// Whether a directory is an OCI layout.
pub(super) fn is_layout(folder: &Path) -> bool {
    folder.join("oci-layout").is_file() && folder.join("index.json").is_file()
}

/// The layers of the selected image, from the lowest. Manifests are verified; the caller verifies
/// the layers.
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
        .take(MAX_DOCUMENT_BYTES)
        .read_to_end(&mut text)
        .map_err(|cause| Error::source(&path, "read it", cause))?;
    let index: Index = parse(&path, &text)?;
    let found = collection::all(layout, &path, index, selector, progress)?;
    let manifest = select_image(&path, found, selector)?;
    let blob = blob(layout, &path, &manifest)?;
    let manifest: Manifest = parse(&blob.path, &blob.read_document()?)?;
    if manifest.layers.is_empty() {
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
        .map(|layer| self::blob(layout, &blob.path, layer))
        .collect()
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

/// Opens a regular file. Never waits for the writer of a pipe.
fn open_regular(path: &Path) -> Result<File> {
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).expect("a flag of open(2)");
    let file = File::options().read(true).custom_flags(flags).open(path);
    let file = file.map_err(|cause| Error::source(path, "open it", cause))?;
    let metadata = file.metadata();
    let metadata = metadata.map_err(|cause| Error::source(path, "look at it", cause))?;
    match metadata.is_file() {
        true => Ok(file),
        false => Err(Error::unsound(path, "it is no regular file")),
    }
}

fn parse<'a, T: Deserialize<'a>>(path: &Path, text: &'a [u8]) -> Result<T> {
    serde_json::from_slice(text)
        .map_err(|error| Error::unsound(path, format!("it is not understood: {error}")))
}

fn blob(layout: &Path, named_in: &Path, descriptor: &Descriptor) -> Result<Blob> {
    let digest = Digest::parse(&descriptor.digest).ok_or_else(|| {
        let shown = descriptor.digest.escape_default();
        Error::unsound(
            named_in,
            format!("`{shown}` is no digest by sha256 or sha512"),
        )
    })?;
    Ok(Blob {
        path: layout.join("blobs").join(digest.folder()).join(&digest.hex),
        digest,
        size: descriptor.size,
    })
}

fn select_image(
    path: &Path,
    found: Vec<Descriptor>,
    selector: ImageSelector<'_>,
) -> Result<Descriptor> {
    let unsound = |problem: String| Err(Error::unsound(path, problem));
    if found.is_empty() {
        return unsound("it names no image".to_owned());
    }
    let tagged: Vec<&Descriptor> = found.iter().filter(|image| selector.names(image)).collect();
    if tagged.is_empty() {
        let names = tags(&found.iter().collect::<Vec<_>>());
        return unsound(format!("it has no image of that tag, but:{names}"));
    }
    let fits = |descriptor: &&&Descriptor| selector.fits(descriptor);
    let fitting: Vec<&Descriptor> = tagged.iter().filter(fits).copied().collect();
    // The same image may have several names.
    match fitting.as_slice() {
        [first, rest @ ..] if rest.iter().all(|other| other.digest == first.digest) => {
            return Ok((*first).clone());
        }
        // The only image, and its platform is unknown.
        [] if tagged.len() == 1 && tagged[0].platform.is_none() => return Ok(tagged[0].clone()),
        [] => {
            let names = platforms(&tagged);
            return unsound(format!(
                "it has no image for that platform, but for:{names}"
            ));
        }
        _ => {}
    }
    let choices = [
        ("--tag", tags(&fitting)),
        ("--platform", platforms(&fitting)),
    ];
    // An option helps only if the images differ in it.
    let choices = choices
        .into_iter()
        .filter(|(_, names)| names.matches(' ').count() > 1);
    let choices: Vec<String> = choices
        .map(|(option, names)| format!("choose one with {option}:{names}"))
        .collect();
    match choices.is_empty() {
        true => unsound("it has several images, and nothing that tells them apart".to_owned()),
        false => unsound(format!("it has several images; {}", choices.join(", or "))),
    }
}

/// The distinct names of images, each preceded by a space.
fn tags(images: &[&Descriptor]) -> String {
    let names = images
        .iter()
        .filter_map(|image| image.annotations.name.as_ref());
    listed(names.map(|name| name.escape_default().to_string()))
}

/// The platforms of images, in the same form.
fn platforms(images: &[&Descriptor]) -> String {
    let platforms = images.iter().filter_map(|image| image.platform.as_ref());
    listed(platforms.map(|platform| {
        let mut name = format!("{}/{}", platform.os, platform.architecture);
        if let Some(variant) = &platform.variant {
            let _ = write!(name, "/{variant}");
        }
        name.escape_default().to_string()
    }))
}

fn listed(names: impl Iterator<Item = String>) -> String {
    let names: BTreeSet<String> = names.collect();
    names.iter().map(|name| format!(" {name}")).collect()
}

impl PlatformDescriptor {
    /// The variant; where none is stated, the one that everybody means by the architecture alone
    /// (containerd's package `platforms`).
    fn variant(&self) -> Option<&str> {
        let usual = match &*self.architecture {
            "arm64" => Some("v8"),
            "arm" => Some("v7"),
            _ => None,
        };
        self.variant.as_deref().or(usual)
    }
}

impl ImageSelector<'_> {
    /// Whether an image has the selected name.
    fn names(&self, image: &Descriptor) -> bool {
        self.tag.is_none() || image.annotations.name.as_deref() == self.tag
    }

    /// Whether an image is for the selected platform.
    fn fits(&self, image: &Descriptor) -> bool {
        match (self.platform, &image.platform) {
            (None, _) => true,
            (Some(selector), Some(platform)) => {
                selector.os == platform.os
                    && selector.architecture == platform.architecture
                    && (selector.variant.is_none()
                        || selector.variant.as_deref() == platform.variant())
            }
            (Some(_), None) => false,
        }
    }
}

impl Blob {
    fn unsound(&self, problem: &str) -> Error {
        Error::unsound(&self.path, problem)
    }

    /// Reads and verifies an index, manifest or configuration.
    fn read_document(&self) -> Result<Vec<u8>> {
        if self.size > MAX_DOCUMENT_BYTES {
            return Err(self.unsound("it is stated to be far too large for what it is"));
        }
        let mut text = Vec::new();
        let mut reader = self.open()?;
        (&mut reader)
            .take(MAX_DOCUMENT_BYTES + 1)
            .read_to_end(&mut text)
            .map_err(|cause| Error::source(&self.path, "read it", cause))?;
        reader.verify(self)?;
        Ok(text)
    }

    /// Opens the blob's file, which must have the stated size.
    pub fn open_file(&self) -> Result<File> {
        let file = open_regular(&self.path)?;
        let metadata = file.metadata();
        let metadata = metadata.map_err(|cause| Error::source(&self.path, "look at it", cause))?;
        self.check_size(metadata.len())?;
        Ok(file)
    }

    fn check_size(&self, size: u64) -> Result<()> {
        if size == self.size {
            return Ok(());
        }
        let stated = self.size;
        Err(self.unsound(&format!("it has {size} bytes where {stated} are stated")))
    }

    /// Opens the blob for one pass that also hashes it.
    pub fn open(&self) -> Result<HashingReader> {
        let file = self.open_file()?;
        Ok(HashingReader {
            // One byte more shows that the file has grown.
            file: file.take(self.size.saturating_add(1)),
            hasher: Hasher::new(self.digest.algorithm),
            length: 0,
        })
    }

    /// Reads the whole of a file and verifies that it is this blob. The file is an open one, since
    /// another could be at the path by the time its contents are read.
    pub fn check(&self, file: &File) -> Result<()> {
        let mut hasher = Hasher::new(self.digest.algorithm);
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut length = 0;
        // More than is stated shows that the file has grown.
        while length <= self.size {
            let read = match file.read_at(&mut chunk, length) {
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => continue,
                read => read.map_err(|cause| Error::source(&self.path, "read it", cause))?,
            };
            if read == 0 {
                break;
            }
            hasher.update(&chunk[..read]);
            length += read as u64;
        }
        self.verify(hasher, length)
    }

    fn verify(&self, hasher: Hasher, length: u64) -> Result<()> {
        self.check_size(length)?;
        let computed = hasher.hex();
        if computed != self.digest.hex {
            return Err(self.unsound(&format!("its digest is wrong: its content has {computed}")));
        }
        Ok(())
    }
}

enum Hasher {
    Sha256(Sha256),
    Sha512(Sha512),
}

impl Hasher {
    fn new(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::Sha256 => Self::Sha256(Sha256::new()),
            Algorithm::Sha512 => Self::Sha512(Sha512::new()),
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hasher) => hasher.update(bytes),
            Self::Sha512(hasher) => hasher.update(bytes),
        }
    }

    fn hex(self) -> String {
        let bytes = match self {
            Self::Sha256(hasher) => hasher.finalize().to_vec(),
            Self::Sha512(hasher) => hasher.finalize().to_vec(),
        };
        bytes.iter().fold(String::new(), |mut hex, byte| {
            let _ = write!(hex, "{byte:02x}");
            hex
        })
    }
}

/// Hashes a blob while it is read.
pub(super) struct HashingReader {
    file: io::Take<File>,
    hasher: Hasher,
    length: u64,
}

impl Read for HashingReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(into)?;
        self.hasher.update(&into[..count]);
        self.length += count as u64;
        Ok(count)
    }
}

impl HashingReader {
    /// Checks size and digest. The caller must have read to the end.
    pub fn verify(self, blob: &Blob) -> Result<()> {
        blob.verify(self.hasher, self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::{Algorithm, Blob, Digest, Hasher, Platform};

    /// Whoever can write to the layout could put another file at the path in between.
    #[test]
    fn a_blob_is_verified_by_the_file_that_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let [path, other] = ["blob", "other"].map(|name| folder.path().join(name));
        std::fs::write(&path, "stated").unwrap();
        std::fs::write(&other, "forged").unwrap();
        let mut hasher = Hasher::new(Algorithm::Sha256);
        hasher.update(b"stated");
        let blob = Blob {
            path: path.clone(),
            digest: Digest {
                algorithm: Algorithm::Sha256,
                hex: hasher.hex(),
            },
            size: 6,
        };
        let [stated, forged] = [&path, &other].map(|path| std::fs::File::open(path).unwrap());
        assert!(blob.check(&forged).is_err(), "not what is at the path");
        std::fs::rename(&other, &path).unwrap();
        blob.check(&stated).unwrap();
        std::fs::write(folder.path().join("grown"), "stated and more").unwrap();
        let grown = std::fs::File::open(folder.path().join("grown")).unwrap();
        let error = blob.check(&grown).unwrap_err();
        assert!(
            error.to_string().contains("bytes where 6 are stated"),
            "{error}"
        );
    }

    #[test]
    fn digests_cannot_contain_paths() {
        let hex = "0123456789abcdef".repeat(4);
        assert!(Digest::parse(&format!("sha256:{hex}")).is_some());
        for bad in [
            "sha256:../../../etc/passwd".to_owned(),
            format!("sha256:{}", hex.to_uppercase()),
            format!("md5:{hex}"),
            format!("sha512:{hex}"),
            hex,
        ] {
            assert_eq!(Digest::parse(&bad), None, "{bad}");
        }
    }

    #[test]
    fn platforms_are_read() {
        let platform = Platform::parse("linux/arm64/v8").unwrap();
        assert_eq!(platform.variant.as_deref(), Some("v8"));
        for bad in ["linux", "linux/", "a/b/c/d"] {
            assert!(Platform::parse(bad).is_err(), "{bad}");
        }
    }
}
