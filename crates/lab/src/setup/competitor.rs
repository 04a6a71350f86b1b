//! The file systems that a comparison runs on.

use anyhow::{Context, Result};

use crate::sides::Kind;

/// A file system of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Competitor {
    /// A mount.
    Mounted(Kind),
    /// The library in this process, on a device in memory.
    Library,
    /// The same with a volume for every task: a control.
    Apart,
}

impl Competitor {
    /// Parses a name.
    ///
    /// # Errors
    ///
    /// If there is no such competitor; the message lists them.
    pub fn parse(text: &str) -> Result<Self> {
        if text == "library" {
            return Ok(Self::Library);
        }
        if text == "apart" {
            return Ok(Self::Apart);
        }
        let kind = Kind::ALL.iter().find(|kind| kind.name() == text);
        let kind = kind.with_context(|| {
            format!(
                "there is no competitor `{text}`; there are kernel, fuse2fs, pext4, library, apart"
            )
        })?;
        Ok(Self::Mounted(*kind))
    }

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Mounted(kind) => kind.name(),
            Self::Library => "library",
            Self::Apart => "apart",
        }
    }

    /// Whether it is pext4, which has settings and a configurable cache.
    #[must_use]
    pub fn is_pext4(self) -> bool {
        !matches!(self, Self::Mounted(Kind::Kernel | Kind::Fuse2fs))
    }
}

#[cfg(test)]
mod tests {
    use super::Competitor;

    #[test]
    fn what_is_unknown_lists_what_there_is() {
        let told = Competitor::parse("xfs").unwrap_err().to_string();
        assert!(told.contains("fuse2fs"), "{told}");
    }
}
