//! The extensions of POSIX archives: keys and values before an entry.

use pext4_ondisk::acl;
use pext4_ondisk::acl::text::{List, Problem};
use pext4_ondisk::time::Time;
use pext4_ondisk::xattr::{self, Attribute};

use super::super::attributes;
use super::super::moment;
use super::super::rules::Rules;
use super::sparse;

/// What the extensions say of an entry.
#[derive(Default)]
pub(super) struct Values {
    pub path: Option<Vec<u8>>,
    pub link: Option<Vec<u8>>,
    pub size: Option<u64>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub time: Option<Time>,
    pub sparse: sparse::Said,
    attributes: xattr::pax::Records,
    /// Access control lists as text.
    access: Vec<u8>,
    default: Vec<u8>,
}

/// The extended attributes that the extensions say, access control lists among them.
#[derive(Default)]
pub(super) struct Attributes {
    pub all: Vec<Attribute>,
    /// The list about access where it came as text. Not all archivers write the mode that it makes
    /// into the header.
    pub access: Option<List>,
    /// Whether there is a list for what is made inside.
    pub has_default: bool,
}

impl Values {
    /// Takes over the records of an extension header; what is wrong with one of them otherwise.
    pub fn read(&mut self, bytes: &[u8]) -> Result<(), String> {
        let mut rest = bytes;
        while !rest.is_empty() && rest[0] != 0 {
            let (key, value, behind) = record(rest).ok_or("an extension header makes no sense")?;
            self.take(key, value)?;
            rest = behind;
        }
        Ok(())
    }

    /// An empty value takes back what an earlier header said under the key.
    fn take(&mut self, key: &[u8], value: &[u8]) -> Result<(), String> {
        let said = (!value.is_empty()).then_some(value);
        match key {
            b"path" => self.path = said.map(<[u8]>::to_vec),
            b"linkpath" => self.link = said.map(<[u8]>::to_vec),
            b"size" => self.size = said.map(|value| number(key, value)).transpose()?,
            b"uid" => self.uid = said.map(|value| small(key, value)).transpose()?,
            b"gid" => self.gid = said.map(|value| small(key, value)).transpose()?,
            b"mtime" => self.time = said.map(time).transpose()?,
            b"SCHILY.acl.access" => self.access = value.to_vec(),
            b"SCHILY.acl.default" => self.default = value.to_vec(),
            _ => {
                if !self.attributes.take(key, value)
                    && let Some(rest) = key.strip_prefix(b"GNU.sparse.")
                {
                    self.sparse.take(rest, value)?;
                }
            }
        }
        Ok(())
    }

    /// The attributes, but for those that the rules leave out, which need not make sense. Of an
    /// access control list that is there in both forms the text counts.
    pub fn attributes(&self, rules: &Rules) -> Result<Attributes, String> {
        let mut found = Attributes::default();
        for (name, value) in self.attributes.attributes() {
            if rules.excludes_attribute(&name) {
                continue;
            }
            let value = value.map_err(|problem| {
                let shown = String::from_utf8_lossy(&name);
                format!("its attribute {shown}: {problem}")
            })?;
            found.all.push(attributes::stored(&name, &value)?);
        }
        let list = |name, text: &[u8]| match rules.excludes_attribute(name) {
            true => Ok(None),
            false => List::parse(text).map_err(|problem| match problem {
                Problem::Named(_) => {
                    format!("{problem}; --exclude-xattr 'system.posix_acl_*' leaves lists out")
                }
                problem => problem.to_string(),
            }),
        };
        found.access = list(acl::ACCESS, &self.access)?;
        if let Some(list) = &found.access {
            put(&mut found.all, acl::ACCESS, list);
        }
        if let Some(list) = list(acl::DEFAULT, &self.default)? {
            put(&mut found.all, acl::DEFAULT, &list);
            found.has_default = true;
        }
        Ok(found)
    }
}

/// Puts a list in place of the one that is there.
fn put(attributes: &mut Vec<Attribute>, name: &[u8], list: &List) {
    let (index, rest) = xattr::split_name(name).expect("lists have numbers of their own");
    attributes.retain(|other| !other.is_named(index, rest));
    attributes.push(Attribute::new(index, rest, &list.stored()));
}

fn time(value: &[u8]) -> Result<Time, String> {
    let text = std::str::from_utf8(value).ok();
    let time = text.and_then(moment::seconds);
    time.ok_or_else(|| "its time is no number".to_owned())
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
    use crate::build::rules::{Rules, name_patterns};

    fn records(contents: &[&[u8]]) -> Vec<u8> {
        let records = contents.iter().map(|content| {
            let length = content.len() + " \n".len() + 2;
            [format!("{length} ").as_bytes(), content, b"\n"].concat()
        });
        records.collect::<Vec<_>>().concat()
    }

    #[test]
    fn records_are_taken_apart() {
        let bytes = records(&[
            b"path=a=b",
            b"mtime=1700000000.5",
            b"SCHILY.xattr.user.k=a\nb",
            b"SCHILY.xattr.user.empty=",
            b"SCHILY.xattr.user.a%3Db=x",
        ]);
        let mut values = Values::default();
        values.read(&bytes).unwrap();
        assert_eq!(values.path.as_deref(), Some(&b"a=b"[..]));
        assert_eq!(values.time.map(|time| time.nanoseconds), Some(500_000_000));
        let found = values.attributes(&Rules::default()).unwrap().all;
        let names: Vec<&[u8]> = found.iter().map(|found| &*found.name).collect();
        assert_eq!(names, [&b"a=b"[..], b"empty", b"k"]);
    }

    #[test]
    fn an_empty_value_takes_a_key_back() {
        let mut values = Values::default();
        let said = ["path=twelve", "size=55555", "mtime=5555"];
        let list = "SCHILY.acl.access=user::rwx,group::r--,other::r--";
        values.read(&records(&said.map(str::as_bytes))).unwrap();
        values.read(&records(&[list.as_bytes()])).unwrap();
        assert!(values.size == Some(55_555) && values.time.is_some() && values.path.is_some());
        assert!(
            values
                .attributes(&Rules::default())
                .unwrap()
                .access
                .is_some()
        );
        values.read(b"8 path=\n8 size=\n9 mtime=\n").unwrap();
        values.read(&records(&[b"SCHILY.acl.access="])).unwrap();
        assert!(values.size.is_none() && values.time.is_none() && values.path.is_none());
        assert!(
            values
                .attributes(&Rules::default())
                .unwrap()
                .access
                .is_none()
        );
    }

    #[test]
    fn what_is_left_out_need_not_make_sense() {
        let rules = |patterns: &[&str]| Rules {
            exclude_attributes: name_patterns(
                &patterns
                    .iter()
                    .copied()
                    .map(str::to_owned)
                    .collect::<Vec<_>>(),
            )
            .unwrap(),
            ..Rules::default()
        };
        for (record, name, says) in [
            (
                "SCHILY.acl.access=user:lisa:rwx",
                "system.posix_acl_access",
                "`lisa`",
            ),
            (
                "SCHILY.acl.default=nonsense",
                "system.posix_acl_*",
                "`nonsense`",
            ),
            (
                "SCHILY.xattr.system.nfs4_acl=x",
                "system.nfs4_acl",
                "nfs4_acl",
            ),
            ("LIBARCHIVE.xattr.user.%61=d*g", "user.a", "base64"),
        ] {
            let mut values = Values::default();
            values.read(&records(&[record.as_bytes()])).unwrap();
            let told = values.attributes(&rules(&[])).err().expect(record);
            assert!(told.contains(says), "{told}");
            let found = values.attributes(&rules(&[name])).expect(record);
            assert!(found.all.is_empty() && found.access.is_none(), "{record}");
        }
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
            assert!(Values::default().read(bytes).is_err(), "{bytes:?}");
        }
    }
}
