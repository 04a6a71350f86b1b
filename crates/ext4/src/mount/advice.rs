//! How an image can still be read that cannot be mounted as asked: found out by trying, which
//! writes nothing.

use std::sync::Arc;

use pext4_block::Device;

use crate::error::Error;
use crate::options::MountOptions;
use crate::volume::Volume;

/// A mount that asks for less than another one.
struct Way {
    skip_replay: bool,
    /// What helps where an image is corrupt.
    remedy: &'static str,
    /// What to say of it where the image has what this version does not write.
    reading: &'static str,
}

const WAYS: [Way; 2] = [
    Way {
        skip_replay: false,
        remedy: "`e2fsck -f` repairs it (keep a copy of the image), and a read-only mount (`-o \
                 ro`) reads what it does not affect",
        reading: "a read-only mount (`-o ro`) reads it",
    },
    // If only this helps, the log is what is wrong, and a repair may begin with replaying it.
    Way {
        skip_replay: true,
        remedy: "a mount with `-o ro,noload` reads the image without its journal: save what is \
                 needed before `e2fsck -f` repairs it",
        reading: "a mount with `-o ro,noload` reads the image without its journal",
    },
];

/// Adds to the error of a mount with these options how the image can be read all the same, if it
/// can.
pub(super) fn add(error: Error, device: &Arc<dyn Device>, options: &MountOptions) -> Error {
    if !matches!(error, Error::Corrupt(_) | Error::Unsupported(_)) {
        return error;
    }
    let way = WAYS.iter().find(|way| way.works(device, options));
    match (error, way) {
        (Error::Corrupt(corrupt), Some(way)) => corrupt.advising(way.remedy).into(),
        (Error::Unsupported(what), Some(way)) => {
            Error::unsupported(format!("{what}; {}", way.reading))
        }
        (error, _) => error,
    }
}

impl Way {
    /// Whether the device can be mounted this way, which asks for less than `options`.
    fn works(&self, device: &Arc<dyn Device>, options: &MountOptions) -> bool {
        let asked = (options.read_only, options.skip_replay);
        let own = MountOptions {
            read_only: true,
            skip_replay: self.skip_replay,
            ..options.clone()
        };
        asked != (own.read_only, own.skip_replay)
            && Volume::open_unfinished(Arc::clone(device), own).is_ok()
    }
}
