//! Recognises container images that were given as archives or folders of plain files: an OCI layout
//! in an archive, or an archive by `docker save`. Built as they are they would become an image of
//! blobs that starts nothing, so they are refused with the way to unpack them.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;

use super::error::{Error, Result};

/// Length of the names that `docker save` and others give layers in the root: digests in hex.
const DIGEST_LENGTH: usize = 64;

/// The names of a source, as far as they tell whether it is a container image.
#[derive(Debug, Default)]
pub(super) struct PackedImage {
    has_layout_mark: bool,
    has_index: bool,
    has_blobs: bool,
    has_manifest: bool,
    has_repositories: bool,
    has_layers: bool,
}

/// How the source was given.
#[derive(Clone, Copy, Debug)]
pub(super) enum Given<'a> {
    Archive(&'a Path),
    /// By a stream with this name.
    Stream(&'a Path),
    Folder(&'a Path),
}

impl<'a> Given<'a> {
    /// The path or name of the source.
    pub fn path(self) -> &'a Path {
        let (Self::Archive(path) | Self::Stream(path) | Self::Folder(path)) = self;
        path
    }
}

impl PackedImage {
    /// Notes a path from the root of the source, without slashes at its ends.
    pub fn note(&mut self, path: &[u8]) {
        match path {
            b"oci-layout" => self.has_layout_mark = true,
            b"index.json" => self.has_index = true,
            b"manifest.json" => self.has_manifest = true,
            b"repositories" => self.has_repositories = true,
            _ => {
                self.has_blobs |= path == b"blobs" || path.starts_with(b"blobs/");
                self.has_layers |= is_layer(path);
            }
        }
    }

    fn is_layout(&self) -> bool {
        self.has_layout_mark && self.has_index && self.has_blobs
    }

    fn is_docker_archive(&self) -> bool {
        self.has_manifest && (self.has_repositories || self.has_layers)
    }

    /// Fails if the noted names are those of a container image.
    pub fn check(&self, given: Given<'_>) -> Result<()> {
        let (what, advice) = match (self.is_layout(), self.is_docker_archive()) {
            (true, _) => ("an OCI layout in an archive", unpack_layout(given)),
            (false, true) => ("a container image by `docker save`", convert(given)),
            (false, false) => return Ok(()),
        };
        let literal = match given {
            Given::Archive(path) => quoted("tar:", path),
            Given::Stream(_) => "tar:/dev/stdin".to_owned(),
            Given::Folder(path) => quoted("dir:", path),
        };
        let problem = format!(
            "it is {what}, and its files would become the image's: build from its layers with \
             `{advice}` ({literal} takes the files as they are)"
        );
        Err(Error::unsound(given.path(), problem))
    }
}

/// Fails if a folder has the files of an archive by `docker save`, or those of an OCI layout but
/// for one: of a whole layout the layers are read.
pub(super) fn check_folder(folder: &Path) -> Result<()> {
    let is_file = |name: &str| folder.join(name).is_file();
    let has_blobs = || folder.join("blobs/sha256").is_dir();
    let missing = match (is_file("oci-layout"), is_file("index.json")) {
        (true, false) => Some("index.json"),
        (false, true) if has_blobs() => Some("oci-layout"),
        _ => None,
    };
    if let Some(missing) = missing {
        let problem = format!(
            "it is an OCI layout without its file {missing}, and its files would become the image's: \
             complete it ({} takes the files as they are)",
            quoted("dir:", folder)
        );
        return Err(Error::unsound(folder, problem));
    }
    if !folder.join("manifest.json").is_file() {
        return Ok(());
    }
    let mut noted = PackedImage::default();
    note_folder(folder, &mut noted)
        .map_err(|cause| Error::source(folder, "read its names", cause))?;
    noted.check(Given::Folder(folder))
}

fn note_folder(folder: &Path, noted: &mut PackedImage) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().into_encoded_bytes();
        noted.note(&name);
        if entry.path().join("layer.tar").is_file() {
            noted.note(&[&name, &b"/layer.tar"[..]].concat());
        }
    }
    Ok(())
}

/// An error for a file in the place of an OCI layout.
pub(super) fn not_a_folder(file: &Path) -> Error {
    let problem = format!(
        "it is a file, and an OCI layout is a folder: if the file is an archive of one, \
         `{}`; if it is an older one by `docker save`, without index.json, `{}`",
        unpack_layout(Given::Archive(file)),
        convert(Given::Archive(file))
    );
    Error::unsound(file, problem)
}

/// Whether a path is that of a layer in an archive by `docker save`.
fn is_layer(path: &[u8]) -> bool {
    let mut names = path.split(|&byte| byte == b'/');
    match (names.next(), names.next(), names.next()) {
        (Some(_), Some(b"layer.tar"), None) => true,
        (Some(name), None, None) => {
            let digest = [&b".tar"[..], b".tar.gz"]
                .iter()
                .find_map(|end| name.strip_suffix(*end));
            digest.is_some_and(|digest| {
                digest.len() == DIGEST_LENGTH && digest.iter().all(u8::is_ascii_hexdigit)
            })
        }
        _ => false,
    }
}

/// The command that builds from an archive of an OCI layout.
fn unpack_layout(given: Given<'_>) -> String {
    let file = match given {
        Given::Archive(path) => quoted("", path),
        Given::Stream(_) | Given::Folder(_) => "FILE".to_owned(),
    };
    format!("mkdir layout && tar -xf {file} -C layout && pext4 build out.img oci:layout")
}

/// The command that builds from an archive by `docker save`.
fn convert(given: Given<'_>) -> String {
    let mut command = String::new();
    let file = match given {
        Given::Archive(path) => quoted("docker-archive:", path),
        Given::Stream(_) => "docker-archive:FILE".to_owned(),
        Given::Folder(path) => {
            let _ = write!(command, "tar -cf saved.tar -C {} . && ", quoted("", path));
            "docker-archive:saved.tar".to_owned()
        }
    };
    let _ = write!(
        command,
        "skopeo copy {file} oci:layout && pext4 build out.img oci:layout"
    );
    command
}

/// A path behind a prefix as a word of a shell.
fn quoted(prefix: &str, path: &Path) -> String {
    let word = format!("{prefix}{}", path.display());
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+:@%,=".contains(&byte);
    match word.bytes().all(is_plain) {
        true => word,
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::{PackedImage, is_layer, quoted};
    use std::path::Path;

    fn of(names: &[&str]) -> (bool, bool) {
        let mut noted = PackedImage::default();
        for name in names {
            noted.note(name.as_bytes());
        }
        (noted.is_layout(), noted.is_docker_archive())
    }

    #[test]
    fn only_container_images_are_recognised() {
        let layout = ["blobs/sha256/x", "oci-layout", "index.json"];
        assert_eq!(of(&layout), (true, false));
        assert_eq!(of(&["manifest.json", "a/layer.tar"]), (false, true));
        assert_eq!(of(&["manifest.json", "repositories"]), (false, true));
        let file_systems = [
            &["index.json", "manifest.json", "blobs"][..],
            &["etc/oci-layout", "etc/index.json", "blobs"],
            &["srv/manifest.json", "srv/x/layer.tar", "repositories"],
            &["manifest.json", "backup.tar", "a/b/layer.tar"],
        ];
        for names in file_systems {
            assert_eq!(of(names), (false, false), "{names:?}");
        }
        let hex = "0123456789abcdef".repeat(4);
        assert!(is_layer(format!("{hex}.tar").as_bytes()));
        assert!(is_layer(format!("{hex}.tar.gz").as_bytes()));
        assert!(!is_layer(format!("{hex}.json").as_bytes()));
    }

    #[test]
    fn paths_become_words_of_a_shell() {
        assert_eq!(quoted("tar:", Path::new("a/b-1.tar")), "tar:a/b-1.tar");
        assert_eq!(quoted("", Path::new("a b'c")), r"'a b'\''c'");
    }
}
