//! Data in an image file behind its file system.

use std::io;

use pext4_block::{Device, FileDevice};
use rustix::fs::SeekFrom;
use rustix::io::Errno;

use crate::error::{Error, Result};

/// Read size in bytes.
const STEP: u64 = 1 << 20;

/// The offset of the first nonzero byte in a range of a file. Holes are skipped.
pub(super) fn first_nonzero_byte(device: &FileDevice, from: u64, to: u64) -> Result<Option<u64>> {
    let mut piece = Vec::new();
    let mut at = from;
    while at < to {
        match next_data(device, at)? {
            Some(data) if data < to => at = data,
            _ => return Ok(None),
        }
        let length = (to - at).min(STEP);
        piece.resize(usize::try_from(length).expect("at most a step"), 0);
        device.read_at(at, &mut piece)?;
        if let Some(place) = piece.iter().position(|&byte| byte != 0) {
            return Ok(Some(at + place as u64));
        }
        at += length;
    }
    Ok(None)
}

fn next_data(device: &FileDevice, at: u64) -> Result<Option<u64>> {
    match rustix::fs::seek(device.file(), SeekFrom::Data(at)) {
        Ok(data) => Ok(Some(data)),
        Err(Errno::NXIO) => Ok(None),
        // A host without support for holes has data everywhere.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(Some(at)),
        Err(errno) => Err(io::Error::from(errno).into()),
    }
}

/// Refuses to grow from size `old` to `new` if that would overwrite data.
pub(super) fn check_growth(device: &FileDevice, old: u64, new: u64) -> Result<()> {
    let Some(at) = first_nonzero_byte(device, old, new.min(device.size()))? else {
        return Ok(());
    };
    Err(Error::Impossible(format!(
        "behind the file system something else lies in the file, from byte {at} on, and growing would \
         overwrite it: keep it elsewhere, then let `truncate -s {old}` cut the file where its file system \
         ends (what an interrupted growth has left there need not be kept)"
    )))
}
