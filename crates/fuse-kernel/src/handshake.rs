//! The first exchange of a connection: what the kernel offers, and what the server takes of it.

use std::io;
use std::time::Duration;

use bitflags::bitflags;
use rustix::param::page_size;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::device::Device;
use crate::wire::{InHeader, InitIn, InitOut, MAJOR, NEWEST_MINOR, OLDEST_MINOR, opcode};

bitflags! {
    /// What a kernel may offer and a server take, each with its name in `linux/fuse.h`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Features: u64 {
        /// `FUSE_ASYNC_READ`: several reads of one file at a time.
        const ASYNC_READ = 1 << 0;
        /// `FUSE_EXPORT_SUPPORT`: nodes can be found by number, so file handles outlive the
        /// kernel's memory.
        const EXPORT = 1 << 4;
        /// `FUSE_BIG_WRITES`: writes of more than a page.
        const BIG_WRITES = 1 << 5;
        /// `FUSE_DONT_MASK`: the server applies the caller's mask.
        const NO_MASK = 1 << 6;
        /// `FUSE_IOCTL_DIR`: `ioctl(2)` on directories.
        const CONTROL_DIRECTORIES = 1 << 11;
        /// `FUSE_DO_READDIRPLUS`: listings with attributes.
        const LIST_WITH_ATTRIBUTES = 1 << 13;
        /// `FUSE_READDIRPLUS_AUTO`: the kernel chooses between listings with and without
        /// attributes.
        const LIST_AS_NEEDED = 1 << 14;
        /// `FUSE_ASYNC_DIO`: several direct reads and writes of one file at a time.
        const ASYNC_DIRECT = 1 << 15;
        /// `FUSE_WRITEBACK_CACHE`: the kernel writes late.
        const WRITEBACK_CACHE = 1 << 16;
        /// `FUSE_NO_OPEN_SUPPORT`: files may be opened without a request.
        const NO_OPEN = 1 << 17;
        /// `FUSE_PARALLEL_DIROPS`: several lookups and listings in one directory at a time.
        const PARALLEL_DIRECTORIES = 1 << 18;
        /// `FUSE_POSIX_ACL`: the kernel enforces access control lists.
        const ACCESS_LISTS = 1 << 20;
        /// `FUSE_MAX_PAGES`: the number of pages of a request is negotiated.
        const MAX_PAGES = 1 << 22;
        /// `FUSE_CACHE_SYMLINKS`: the kernel remembers the targets of links.
        const CACHE_LINKS = 1 << 23;
        /// `FUSE_NO_OPENDIR_SUPPORT`: directories may be opened without a request.
        const NO_OPEN_DIRECTORY = 1 << 24;
        /// `FUSE_HANDLE_KILLPRIV_V2`: the server clears set-id bits, when it is told to.
        const CLEARS_SET_ID = 1 << 28;
        /// `FUSE_SETXATTR_EXT`: with an access list the kernel says whether the file loses its
        /// set-group-id bit.
        const SET_GROUP_ID_OF_LISTS = 1 << 29;
        /// `FUSE_INIT_EXT`: there are more than 32 features.
        const MORE = 1 << 30;
        /// `FUSE_OVER_IO_URING`: requests come over rings, if the system has them; see
        /// [`Session::run`].
        ///
        /// [`Session::run`]: crate::Session::run
        const OVER_IO_URING = 1 << 41;
    }
}

/// What a server asks for.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Those of these that the kernel offers are used.
    pub features: Features,
    /// Most bytes of a write.
    pub max_write: u32,
    /// Requests in flight for which no process waits.
    pub max_background: u16,
    /// The smallest difference between two times of a file: a power of ten nanoseconds, up to a
    /// second.
    pub time_granularity: Duration,
}

/// Room for any request of the kernel before the end of the handshake.
const BUFFER: usize = 64 << 10;

/// Negotiates; returns what was agreed on.
pub(crate) fn shake_hands(device: &Device, wanted: &Wanted) -> io::Result<InitOut> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let read = device.read(&mut buffer)?;
        let length = read.ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected))?;
        let (unique, offer) = offer(&buffer[..length]).ok_or_else(unexpected)?;
        match answer(&offer, wanted) {
            Some(answer) => {
                device.send(unique, 0, [answer.as_bytes(), &[]])?;
                // A kernel with a newer major version offers once more, in ours.
                if offer.major == MAJOR {
                    return Ok(answer);
                }
            }
            None => {
                const PROTOCOL: i32 = 71;
                let _ = device.send(unique, -PROTOCOL, [&[], &[]]);
                return Err(too_old(&offer));
            }
        }
    }
}

fn unexpected() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "the kernel's first message is no offer",
    )
}

fn too_old(offer: &InitIn) -> io::Error {
    let text = format!(
        "the kernel speaks version {}.{} of FUSE, and {MAJOR}.{OLDEST_MINOR} is needed (Linux 5.4)",
        offer.major, offer.minor
    );
    io::Error::new(io::ErrorKind::Unsupported, text)
}

/// The kernel's offer, with what older kernels do not send as zeroes.
fn offer(message: &[u8]) -> Option<(u64, InitIn)> {
    let (header, body) = InHeader::read_from_prefix(message).ok()?;
    if header.opcode != opcode::INIT || body.len() < 16 {
        return None;
    }
    let mut offer = InitIn::new_zeroed();
    let length = body.len().min(size_of::<InitIn>());
    offer.as_mut_bytes()[..length].copy_from_slice(&body[..length]);
    Some((header.unique, offer))
}

/// The answer to an offer; `None` if the version is too old.
fn answer(offer: &InitIn, wanted: &Wanted) -> Option<InitOut> {
    if offer.major > MAJOR {
        return Some(InitOut {
            major: MAJOR,
            minor: NEWEST_MINOR,
            ..InitOut::default()
        });
    }
    if offer.major < MAJOR || offer.minor < OLDEST_MINOR {
        return None;
    }
    let low = u64::from(offer.flags);
    let has_more = low & Features::MORE.bits() != 0;
    let high = if has_more { offer.more_flags } else { 0 };
    let taken = (wanted.features | Features::MORE).bits() & (low | u64::from(high) << 32);
    // Reads are bounded as writes are.
    let pages = (wanted.max_write as usize).div_ceil(page_size());
    Some(InitOut {
        major: MAJOR,
        minor: offer.minor.min(NEWEST_MINOR),
        max_readahead: offer.max_readahead.min(wanted.max_write),
        flags: taken as u32,
        max_background: wanted.max_background,
        congestion_threshold: wanted.max_background / 4 * 3,
        max_write: wanted.max_write,
        time_granularity: u32::try_from(wanted.time_granularity.as_nanos()).unwrap_or(1),
        max_pages: u16::try_from(pages).unwrap_or(u16::MAX),
        more_flags: (taken >> 32) as u32,
        ..InitOut::default()
    })
}

impl InitOut {
    /// The features that were taken.
    pub(crate) fn features(&self) -> Features {
        Features::from_bits_truncate(u64::from(self.flags) | u64::from(self.more_flags) << 32)
    }

    /// Most bytes that a request or a reply has beside its structures.
    pub(crate) fn max_payload(&self) -> usize {
        /// What the kernel sends if the number of pages was not negotiated.
        const USUAL_PAGES: u16 = 32;
        let pages = usize::from(self.max_pages.max(USUAL_PAGES)) * page_size();
        pages.max(self.max_write as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted() -> Wanted {
        Wanted {
            features: Features::NO_OPEN | Features::WRITEBACK_CACHE,
            max_write: 1 << 20,
            max_background: 64,
            time_granularity: Duration::from_nanos(1),
        }
    }

    fn offered(major: u32, minor: u32, flags: Features) -> InitIn {
        let mut offer = InitIn::new_zeroed();
        (offer.major, offer.minor) = (major, minor);
        (offer.flags, offer.max_readahead) = (flags.bits() as u32, 128 << 10);
        offer
    }

    #[test]
    fn what_is_offered_and_wanted_is_taken() {
        let offer = offered(7, 45, Features::NO_OPEN | Features::ACCESS_LISTS);
        let answer = answer(&offer, &wanted()).expect("it is new enough");
        assert_eq!(u64::from(answer.flags), Features::NO_OPEN.bits());
        assert_eq!((answer.minor, answer.max_pages), (NEWEST_MINOR, 256));
        assert_eq!(answer.congestion_threshold, 48);
    }

    #[test]
    fn the_room_that_was_agreed_on_holds_reads_and_writes() {
        let offer = offered(7, 42, Features::MORE | Features::MAX_PAGES);
        let mut wanted = wanted();
        let answer = |wanted: &Wanted| answer(&offer, wanted).expect("it is new enough");
        assert_eq!(answer(&wanted).max_payload(), 1 << 20);
        wanted.max_write = 4096;
        assert_eq!(answer(&wanted).max_payload(), 32 * page_size());
    }

    #[test]
    fn features_beyond_the_first_32_are_taken_too() {
        let mut offer = offered(7, 42, Features::MORE);
        offer.more_flags = (Features::OVER_IO_URING.bits() >> 32) as u32;
        let mut wanted = wanted();
        wanted.features |= Features::OVER_IO_URING;
        let answer = answer(&offer, &wanted).expect("it is new enough");
        let taken = Features::MORE | Features::OVER_IO_URING;
        assert_eq!(answer.features(), taken);
    }

    #[test]
    fn a_version_that_is_too_old_is_refused_and_a_newer_one_asked_again() {
        assert!(answer(&offered(7, 30, Features::empty()), &wanted()).is_none());
        assert!(answer(&offered(6, 50, Features::empty()), &wanted()).is_none());
        let newer = answer(&offered(8, 0, Features::all()), &wanted()).expect("ours is named");
        assert_eq!((newer.major, newer.flags), (7, 0));
    }

    #[test]
    fn an_offer_may_be_shorter_than_todays() {
        let mut header = InHeader::new_zeroed();
        header.opcode = opcode::INIT;
        let short = offered(7, 31, Features::all());
        let message = [header.as_bytes(), &short.as_bytes()[..16]].concat();
        let (_, offer) = super::offer(&message).expect("it is an offer");
        assert_eq!((offer.minor, offer.more_flags), (31, 0));
        assert!(super::offer(&message[..50]).is_none());
    }
}
