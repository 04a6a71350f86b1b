//! Rules that exclude or change files between the sources and the image.
//!
//! If a directory is excluded, its contents are excluded too. An entry of an archive has two paths
//! if symbolic links are on it; a match of either counts.

use pext4_ondisk::time::Time;

use super::mapping::{Map, Owner, set_owner};
use super::patterns::{AttributePatterns, PathPatterns};
use super::tree::Metadata;

/// All rules of a build.
#[derive(Clone, Debug, Default)]
pub(super) struct Rules {
    pub exclude: PathPatterns,
    pub exclude_attributes: AttributePatterns,
    pub owner: Owner,
    pub mtime: Option<Time>,
    /// Later times are reduced to this, in seconds since 1970.
    pub latest: Option<i64>,
    /// Whether the inodes have no room for times beyond 2038 and for fractions of a second.
    pub has_narrow_times: bool,
    pub map: Map,
}

impl Rules {
    /// Whether a path, without a leading slash, is excluded. `is_directory` is called only if it
    /// matters.
    pub fn excludes(&self, path: &[u8], is_directory: impl FnOnce() -> bool) -> bool {
        !self.exclude.is_empty() && self.exclude.is_match(path, is_directory)
    }

    /// The nearest time that the inodes can store. What is derived from times, as the UUID is, is
    /// derived from these, since only these can be read back.
    pub fn storable(&self, time: Time) -> Time {
        match self.has_narrow_times {
            true => time.clamp_narrow(),
            false => time.clamp_wide(),
        }
    }

    /// Whether any rule needs the path of a file.
    pub fn needs_paths(&self) -> bool {
        !self.exclude.is_empty() || self.map.has_paths()
    }

    /// Whether an attribute is excluded.
    pub fn excludes_attribute(&self, name: &[u8]) -> bool {
        self.exclude_attributes.matches(name)
    }

    /// Applies the rules to owner, mode and times; the time becomes one that inodes can store. A
    /// rule for paths applies if it matches one of `paths`, which is called only if there are such
    /// rules. Returns true if the mode changed: the caller must then adapt the access control list.
    pub fn apply(&self, paths: impl FnOnce() -> Vec<Vec<u8>>, metadata: &mut Metadata) -> bool {
        let is_changed = self.change(paths, metadata);
        let time = self.storable(Time {
            seconds: metadata.seconds,
            nanoseconds: metadata.nanoseconds,
        });
        (metadata.seconds, metadata.nanoseconds) = (time.seconds, time.nanoseconds);
        is_changed
    }

    /// As [`Rules::apply`], but the time may be one that inodes cannot store.
    pub fn change(&self, paths: impl FnOnce() -> Vec<Vec<u8>>, metadata: &mut Metadata) -> bool {
        let mode = metadata.mode;
        (metadata.uid, metadata.gid) = (self.map.uid(metadata.uid), self.map.gid(metadata.gid));
        set_owner(metadata, self.owner);
        if let Some(time) = self.mtime {
            (metadata.seconds, metadata.nanoseconds) = (time.seconds, time.nanoseconds);
        }
        if self.map.has_paths() {
            self.map.apply_to(&paths(), metadata);
        }
        if let Some(latest) = self.latest
            && (metadata.seconds, metadata.nanoseconds) > (latest, 0)
        {
            (metadata.seconds, metadata.nanoseconds) = (latest, 0);
        }
        metadata.mode != mode
    }
}

#[cfg(test)]
mod tests {
    use super::{Map, Rules};
    use crate::build::tree::Metadata;

    #[test]
    fn a_mapping_changes_ids_ranges_and_paths() {
        let text =
            "# map\nuid 1000 0 10 # ten\ngid 5 7\n\npath /bin/su mode=4755 owner=0:1 mtime=@9\n";
        let rules = Rules {
            map: Map::parse(text).unwrap(),
            latest: Some(100),
            ..Rules::default()
        };
        let mut metadata = Metadata {
            mode: 0o100_644,
            uid: 1003,
            gid: 5,
            seconds: 1000,
            ..Metadata::default()
        };
        assert!(!rules.apply(|| vec![b"etc/x".to_vec()], &mut metadata));
        assert_eq!((metadata.uid, metadata.gid, metadata.seconds), (3, 7, 100));
        assert!(rules.apply(|| vec![b"bin/su".to_vec()], &mut metadata));
        assert_eq!(
            (metadata.mode, metadata.uid, metadata.gid),
            (0o104_755, 0, 1)
        );
        assert_eq!(metadata.seconds, 9);
    }

    #[test]
    fn paths_of_a_mapping_are_quoted_as_in_a_shell() {
        let map = "path '/a b' mode=0600\npath /c\\ d mode=0600\npath \"*/e f\" mode=0600\r\n";
        let rules = Rules {
            map: Map::parse(map).unwrap(),
            ..Rules::default()
        };
        for path in ["a b", "c d", "x/e f"] {
            let mut metadata = Metadata {
                mode: 0o100_644,
                ..Metadata::default()
            };
            assert!(rules.apply(|| vec![path.into()], &mut metadata), "{path}");
        }
    }
}
