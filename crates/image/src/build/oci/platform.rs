//! Platforms: what `--platform` selects, and what documents state.

use std::fmt;

use serde::Deserialize;

use super::or_default;
use crate::build::error::ParseError;

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

/// The platform of an image, as an index or its configuration states it.
#[derive(Clone, Deserialize)]
pub(super) struct PlatformDescriptor {
    #[serde(default, deserialize_with = "or_default")]
    pub os: String,
    #[serde(default, deserialize_with = "or_default")]
    architecture: String,
    variant: Option<String>,
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

    /// Whether this is the platform that a selector means.
    pub fn fits(&self, selector: &Platform) -> bool {
        selector.os == self.os
            && selector.architecture == self.architecture
            && (selector.variant.is_none() || selector.variant.as_deref() == self.variant())
    }
}

impl fmt::Display for PlatformDescriptor {
    /// As `--platform` takes it.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (os, architecture) = (self.os.escape_default(), self.architecture.escape_default());
        write!(out, "{os}/{architecture}")?;
        match &self.variant {
            Some(variant) => write!(out, "/{}", variant.escape_default()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Platform;

    #[test]
    fn platforms_are_read() {
        let platform = Platform::parse("linux/arm64/v8").unwrap();
        assert_eq!(platform.variant.as_deref(), Some("v8"));
        for bad in ["linux", "linux/", "a/b/c/d"] {
            assert!(Platform::parse(bad).is_err(), "{bad}");
        }
    }
}
