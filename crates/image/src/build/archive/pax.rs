//! The extensions of POSIX archives: keys and values before an entry.

use pext4_ondisk::acl;
use pext4_ondisk::time::Time;
use pext4_ondisk::xattr::{self, Attribute};

use super::super::acl_text::{self, Permissions};
use super::super::attributes;
use super::super::moment;
use super::super::rules::Rules;
use super::sparse;

/// Before the names of extended attributes.
const ATTRIBUTE: &[u8] = b"SCHILY.xattr.";

/// What the extensions say of an entry.
#[derive(Default)]
pub(super) struct Values {
    pub path: Option<Vec<u8>>,
    pub link: Option<Vec<u8>>,
    pub size: Option<u64>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub time: Option<Time>,
    pub attributes: Vec<Attribute>,
    /// What a list about access says about the mode.
    pub permissions: Permissions,
    pub sparse: sparse::Said,
}

impl Values {
    /// Takes over the records of an extension header; what is wrong with one of them otherwise.
    pub fn read(&mut self, bytes: &[u8], rules: &Rules) -> Result<(), String> {
        let mut rest = bytes;
        while !rest.is_empty() && rest[0] != 0 {
            let (key, value, behind) = record(rest).ok_or("an extension header makes no sense")?;
            self.take(key, value, rules)?;
            rest = behind;
        }
        Ok(())
    }

    fn take(&mut self, key: &[u8], value: &[u8], rules: &Rules) -> Result<(), String> {
        match key {
            b"path" => self.path = Some(value.to_vec()),
            b"linkpath" => self.link = Some(value.to_vec()),
            b"size" => self.size = Some(number(key, value)?),
            b"uid" => self.uid = Some(small(key, value)?),
            b"gid" => self.gid = Some(small(key, value)?),
            b"mtime" => {
                let text = std::str::from_utf8(value).ok();
                let time = text.and_then(moment::seconds);
                self.time = Some(time.ok_or_else(|| "its time is no number".to_owned())?);
            }
            b"SCHILY.acl.access" => {
                self.add_list(acl::ACCESS, value)?;
                // Not all archivers write the mode that the list makes into the header.
                self.permissions = Permissions::of(value)?;
            }
            b"SCHILY.acl.default" => self.add_list(acl::DEFAULT, value)?,
            _ => {
                if let Some(name) = key.strip_prefix(ATTRIBUTE) {
                    if !rules.excludes_attribute(name) {
                        self.add(attributes::stored(name, value)?);
                    }
                } else if let Some(rest) = key.strip_prefix(b"GNU.sparse.") {
                    self.sparse.take(rest, value)?;
                }
            }
        }
        Ok(())
    }

    /// Later records of one name win.
    fn add(&mut self, attribute: Attribute) {
        self.attributes
            .retain(|other| !other.is_named(attribute.index, &attribute.name));
        self.attributes.push(attribute);
    }

    fn add_list(&mut self, name: &[u8], text: &[u8]) -> Result<(), String> {
        let list = acl_text::stored(text)?;
        let (index, rest) = xattr::split_name(name).expect("lists have numbers of their own");
        self.add(Attribute::new(index, rest, &list));
        Ok(())
    }
}

/// The first record: its length in digits, a blank, the key, `=`, the value, a line's end.
fn record(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let blank = bytes.iter().take(20).position(|&byte| byte == b' ')?;
    let length: usize = std::str::from_utf8(&bytes[..blank]).ok()?.parse().ok()?;
    let (record, rest) = bytes.split_at_checked(length)?;
    let content = record.get(blank + 1..)?.strip_suffix(b"\n")?;
    let equals = content.iter().position(|&byte| byte == b'=')?;
    Some((&content[..equals], &content[equals + 1..], rest))
}

/// A decimal number.
pub(super) fn number(key: &[u8], value: &[u8]) -> Result<u64, String> {
    std::str::from_utf8(value)
        .ok()
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| format!("its {} is no number", String::from_utf8_lossy(key)))
}

fn small(key: &[u8], value: &[u8]) -> Result<u32, String> {
    u32::try_from(number(key, value)?).map_err(|_| {
        let key = String::from_utf8_lossy(key);
        format!("its {key} is no number of 32 bits")
    })
}

#[cfg(test)]
mod tests {
    use super::Values;
    use crate::build::rules::Rules;

    #[test]
    fn records_are_taken_apart() {
        let mut bytes = Vec::new();
        for content in [
            &b"path=a=b"[..],
            b"mtime=1700000000.5",
            b"SCHILY.xattr.user.k=a\nb",
        ] {
            let length = content.len() + " \n".len() + 2;
            bytes.extend([format!("{length} ").as_bytes(), content, b"\n"].concat());
        }
        let mut values = Values::default();
        values.read(&bytes, &Rules::default()).unwrap();
        assert_eq!(values.path.as_deref(), Some(&b"a=b"[..]));
        assert_eq!(values.time.map(|time| time.nanoseconds), Some(500_000_000));
        assert_eq!(values.attributes.len(), 1);
    }

    #[test]
    fn nonsense_is_refused() {
        for bytes in [
            &b"x"[..],
            b"99 path=a\n",
            b"3 a\n",
            b"10 size=x\n",
            b"7 path\n",
            b"0 =\n",
        ] {
            assert!(
                Values::default().read(bytes, &Rules::default()).is_err(),
                "{bytes:?}"
            );
        }
    }
}
