//! The extended headers of POSIX archives: keys and values for the next entry, or for all that
//! follow.

use pext4_ondisk::time::Time;
use pext4_ondisk::xattr::pax;

use super::sparse;

/// Approximate memory of an attribute's record in bytes, in addition to its name and value.
const RECORD_OVERHEAD_BYTES: usize = 64;

/// The values that extended headers give for an entry.
#[derive(Clone, Debug, Default)]
pub(crate) struct Records {
    pub(crate) name: Option<Vec<u8>>,
    pub(crate) link: Option<Vec<u8>>,
    pub(crate) size: Option<u64>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    pub(crate) modified: Option<Time>,
    pub(crate) accessed: Option<Time>,
    pub(crate) major: Option<u32>,
    pub(crate) minor: Option<u32>,
    pub(crate) sparse: sparse::PaxMap,
    pub(crate) attributes: pax::Records,
    /// Access control lists as text.
    pub(crate) access_list: Vec<u8>,
    pub(crate) default_list: Vec<u8>,
}

impl Records {
    /// Adds the records of an extended header; fails with a description of the first malformed one.
    pub(crate) fn read(&mut self, bytes: &[u8]) -> Result<(), String> {
        let mut rest = bytes;
        while !rest.is_empty() && rest[0] != 0 {
            let (key, value, next) = record(rest).ok_or("an extension header makes no sense")?;
            self.set(key, value)?;
            rest = next;
        }
        Ok(())
    }

    /// Approximate memory of the records in bytes.
    pub(crate) fn size(&self) -> usize {
        let texts = [&self.name, &self.link, &self.sparse.name];
        let texts = texts.into_iter().flatten().map(Vec::len).sum::<usize>();
        let lists = self.access_list.len() + self.default_list.len();
        memory_of(&self.attributes) + texts + lists + self.sparse.size()
    }

    /// Sets the value of a key. An empty value removes the value from an earlier header.
    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), String> {
        let given = (!value.is_empty()).then_some(value);
        let whole = || given.map(|value| number(key, value)).transpose();
        let small = || given.map(|value| small(key, value)).transpose();
        let time = || given.map(|value| time(key, value)).transpose();
        match key {
            b"path" => self.name = given.map(<[u8]>::to_vec),
            b"linkpath" => self.link = given.map(<[u8]>::to_vec),
            b"size" => self.size = whole()?,
            b"uid" => self.uid = small()?,
            b"gid" => self.gid = small()?,
            b"mtime" => self.modified = time()?,
            b"atime" => self.accessed = time()?,
            b"SCHILY.devmajor" => self.major = small()?,
            b"SCHILY.devminor" => self.minor = small()?,
            b"SCHILY.acl.access" => self.access_list = value.to_vec(),
            b"SCHILY.acl.default" => self.default_list = value.to_vec(),
            _ => {
                if !self.attributes.set(key, value)
                    && let Some(rest) = key.strip_prefix(b"GNU.sparse.")
                {
                    self.sparse.set(rest, value)?;
                }
            }
        }
        Ok(())
    }
}

/// Approximate memory of the records of attributes in bytes.
pub(crate) fn memory_of(attributes: &pax::Records) -> usize {
    let (count, bytes) = attributes.extent();
    RECORD_OVERHEAD_BYTES * count + bytes
}

/// Splits off the first record and returns its key, its value, and the bytes after it. A record
/// consists of its length in decimal, a blank, the key, `=`, the value, and a newline.
fn record(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let blank = bytes.iter().take(20).position(|&byte| byte == b' ')?;
    let length: usize = std::str::from_utf8(&bytes[..blank]).ok()?.parse().ok()?;
    let (record, rest) = bytes.split_at_checked(length)?;
    let content = record.get(blank + 1..)?.strip_suffix(b"\n")?;
    let equals = content.iter().position(|&byte| byte == b'=')?;
    Some((&content[..equals], &content[equals + 1..], rest))
}

/// A decimal number.
pub(crate) fn number(key: &[u8], value: &[u8]) -> Result<u64, String> {
    let text = std::str::from_utf8(value).ok();
    text.and_then(|text| text.parse().ok())
        .ok_or_else(|| format!("its {} is no number", String::from_utf8_lossy(key)))
}

fn small(key: &[u8], value: &[u8]) -> Result<u32, String> {
    u32::try_from(number(key, value)?).map_err(|_| {
        let key = String::from_utf8_lossy(key);
        format!("its {key} is no number of 32 bits")
    })
}

fn time(key: &[u8], value: &[u8]) -> Result<Time, String> {
    let text = std::str::from_utf8(value).ok();
    text.and_then(Time::from_decimal)
        .ok_or_else(|| format!("its {} is no number", String::from_utf8_lossy(key)))
}

#[cfg(test)]
mod tests {
    use super::Records;

    fn lines(contents: &[&[u8]]) -> Vec<u8> {
        let records = contents.iter().map(|content| {
            let length = content.len() + " \n".len() + 2;
            [format!("{length} ").as_bytes(), content, b"\n"].concat()
        });
        records.collect::<Vec<_>>().concat()
    }

    #[test]
    fn records_are_split_into_key_and_value() {
        let bytes = lines(&[
            b"path=a=b",
            b"mtime=1700000000.5",
            b"SCHILY.xattr.user.k=a\nb",
            b"SCHILY.xattr.user.empty=",
            b"SCHILY.xattr.user.a%3Db=x",
        ]);
        let mut records = Records::default();
        records.read(&bytes).unwrap();
        assert_eq!(records.name.as_deref(), Some(&b"a=b"[..]));
        let time = records.modified.unwrap();
        assert_eq!(
            (time.seconds, time.nanoseconds),
            (1_700_000_000, 500_000_000)
        );
        let names: Vec<Vec<u8>> = records
            .attributes
            .attributes()
            .map(|(name, _)| name)
            .collect();
        assert_eq!(names, [&b"user.a=b"[..], b"user.empty", b"user.k"]);
    }

    #[test]
    fn an_empty_value_removes_a_key() {
        let mut records = Records::default();
        let given = [
            "path=twelve",
            "size=55555",
            "mtime=5555",
            "GNU.sparse.name=x",
        ];
        let list = "SCHILY.acl.access=user::rwx,group::r--,other::r--";
        records.read(&lines(&given.map(str::as_bytes))).unwrap();
        records.read(&lines(&[list.as_bytes()])).unwrap();
        assert!(records.size == Some(55_555) && records.name.is_some());
        assert!(records.modified.is_some() && !records.access_list.is_empty());
        records.read(b"8 path=\n8 size=\n9 mtime=\n").unwrap();
        assert!(records.sparse.name.is_some());
        let empty = [&b"SCHILY.acl.access="[..], b"GNU.sparse.name="];
        records.read(&lines(&empty)).unwrap();
        assert!(records.sparse.name.is_none());
        assert!(records.size.is_none() && records.name.is_none());
        assert!(records.modified.is_none() && records.access_list.is_empty());
    }

    #[test]
    fn malformed_records_are_refused() {
        for bytes in [
            &b"x"[..],
            b"99 path=a\n",
            b"3 a\n",
            b"10 size=x\n",
            b"7 path\n",
            b"0 =\n",
        ] {
            assert!(Records::default().read(bytes).is_err(), "{bytes:?}");
        }
    }
}
