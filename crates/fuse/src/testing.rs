//! A volume in memory for the tests of this crate.

use std::sync::Arc;

use pext4_fs::{MountOptions, Volume};
use pext4_testkit::oracle::format::{Features, Format};

use crate::dispatch::Dispatch;
use crate::error_log::ErrorLog;
use crate::options::KernelOptions;

/// A new volume of 16 MiB.
pub fn volume() -> Volume {
    let device = Format::new(16 << 20, 1024, Features::Upstream).device();
    let device = Arc::new(device.expect("mke2fs makes it"));
    Volume::open(device, MountOptions::default()).expect("a mount")
}

/// Executes requests on a volume, without a log.
pub fn dispatch(volume: &Arc<Volume>) -> Dispatch {
    dispatch_with(volume, &KernelOptions::default())
}

/// The same, by the options of a mount.
pub fn dispatch_with(volume: &Arc<Volume>, options: &KernelOptions) -> Dispatch {
    let error_log = Arc::new(ErrorLog::new(|_| ()));
    Dispatch::new(Arc::clone(volume), error_log, options)
}
