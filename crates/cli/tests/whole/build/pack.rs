//! Archives for tests, sound and unsound, and their compressed forms.

use std::io::Write;

/// An archive in memory.
pub struct Packer(tar::Builder<Vec<u8>>);

impl Packer {
    pub fn new() -> Self {
        Self(tar::Builder::new(Vec::new()))
    }

    /// Adds an entry whose name is taken as it is, whatever a sound library would say.
    pub fn entry(self, kind: u8, name: &str, link: &str, content: &[u8]) -> Self {
        self.entry_at(1_000_000, kind, name, link, content)
    }

    /// The same with a time.
    pub fn entry_at(mut self, time: u64, kind: u8, name: &str, link: &str, content: &[u8]) -> Self {
        let mut header = tar::Header::new_gnu();
        header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
        header.as_mut_bytes()[157..157 + link.len()].copy_from_slice(link.as_bytes());
        header.as_mut_bytes()[156] = kind;
        header.set_size(content.len() as u64);
        header.set_mode(0o640);
        header.set_uid(1000);
        header.set_gid(100);
        header.set_mtime(time);
        header.set_cksum();
        self.0.append(&header, content).expect("memory is enough");
        self
    }

    pub fn file(self, name: &str, content: &[u8]) -> Self {
        self.entry(b'0', name, "", content)
    }

    pub fn directory(self, name: &str) -> Self {
        self.entry(b'5', name, "", b"")
    }

    /// An extension header with this record, for the next entry or, of kind `g`, for all.
    pub fn extension(self, kind: u8, key: &str, value: &[u8]) -> Self {
        let rest = [format!(" {key}=").as_bytes(), value, b"\n"].concat();
        let mut length = rest.len();
        while rest.len() + length.to_string().len() != length {
            length = rest.len() + length.to_string().len();
        }
        let record = [length.to_string().as_bytes(), &rest].concat();
        self.entry(kind, "extension", "", &record)
    }

    pub fn finish(self) -> Vec<u8> {
        self.0.into_inner().expect("memory is enough")
    }
}

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).expect("memory is enough");
    encoder.finish().expect("memory is enough")
}

pub fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 1).expect("memory is enough")
}
