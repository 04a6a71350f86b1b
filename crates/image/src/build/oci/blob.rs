//! Blobs of a layout: files that are named by the digest of their contents, and verified by it.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use sha2::{Digest as _, Sha256, Sha512};

use crate::build::error::{Error, Result};

/// Maximum size of an index or manifest in bytes.
pub(super) const MAX_DOCUMENT_BYTES: u64 = 4 << 20;
/// Size of the buffer for hashing in bytes.
const CHUNK_BYTES: usize = 1 << 20;

/// A blob with its stated size and digest.
#[derive(Clone, Debug)]
pub(in crate::build) struct Blob {
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

impl Blob {
    /// The blob of a digest and a size, as a document states them; none if the digest is not valid.
    pub fn stated(layout: &Path, digest: &str, size: u64) -> Option<Self> {
        let digest = Digest::parse(digest)?;
        Some(Self {
            path: layout.join("blobs").join(digest.folder()).join(&digest.hex),
            digest,
            size,
        })
    }

    fn unsound(&self, problem: &str) -> Error {
        Error::unsound(&self.path, problem)
    }

    /// Reads and verifies an index, manifest or configuration.
    pub fn read_document(&self) -> Result<Vec<u8>> {
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

    /// Whether the layout lacks the blob, as it may for images that nobody wants.
    pub fn is_missing(&self) -> bool {
        std::fs::metadata(&self.path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
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
pub(in crate::build) struct HashingReader {
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

/// Opens a regular file. Never waits for the writer of a pipe.
pub(super) fn open_regular(path: &Path) -> Result<File> {
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

#[cfg(test)]
mod tests {
    use super::{Algorithm, Blob, Digest, Hasher};

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
}
