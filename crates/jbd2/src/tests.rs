//! Tests of the whole journal, with a toy file system.
//!
//! The toy has *cells*, decoded numbers whose homes are eight bytes in a table block each, and
//! *blocks*, which it creates, edits and frees as metadata and reuses as data. Every operation is
//! one handle and writes its own number into everything that it changes.

mod abort;
mod crash;
mod image;
mod life;
mod offline;
mod shared_flushes;
mod stress;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use pext4_block::{Cache, Device, RamDevice, Stamp};
use pext4_ondisk::journal::JournalSuperblock;
use pext4_ondisk::{BlockNumber, Tid};
use pext4_sync::{Class, Mutex};

use crate::recovery::{self, Recovered};
use crate::superblock::write_superblock;
use crate::{Capture, Client, Config, Handle, Journal, JournalError, Log, LogArea, Owed};

pub(super) const BLOCK: usize = 1024;
pub(super) const DEVICE_BLOCKS: u64 = 512;
const TABLE: u64 = 10;
const CELLS_PER_BLOCK: usize = BLOCK / 8;
pub(super) const CELLS: usize = 2 * CELLS_PER_BLOCK;
/// Blocks that operations create, edit and free.
pub(super) const BLOCKS: std::ops::Range<u64> = 20..60;
const LOG_START: u64 = 100;
const SEALED: Stamp = Stamp {
    kind: 1,
    inode: 2,
    generation: 3,
};
/// The client panics when it seals a block that operation `NO_SEAL` wrote.
const NO_SEAL: u64 = 1_000_000;
/// Longer than any test: there are only requested commits.
const NEVER: Duration = Duration::from_secs(100_000);

/// A number that the journal keeps.
pub(super) struct Cell {
    index: usize,
    state: Mutex<CellState>,
}

struct CellState {
    value: u64,
    owed: Owed,
}

impl Cell {
    /// Its block in the table.
    fn host(&self) -> u64 {
        (self.index / CELLS_PER_BLOCK) as u64
    }

    fn capture_of(&self, value: u64) -> Capture {
        Capture::Piece {
            block: BlockNumber(TABLE + self.host()),
            offset: (self.index % CELLS_PER_BLOCK * 8) as u32,
            bytes: value.to_le_bytes().to_vec(),
        }
    }

    pub(super) fn change(&self, handle: &mut Handle<'_>, change: impl FnOnce(u64) -> u64) -> u64 {
        let mut guard = self.state.lock();
        let CellState { value, owed } = &mut *guard;
        handle.touch_part(owed, self.host(), |captures| {
            captures.push(self.capture_of(*value));
        });
        *value = change(*value);
        *value
    }

    fn capture(&self, tid: Tid, captures: &mut Vec<Capture>) {
        let mut state = self.state.lock();
        if state.owed.clear(tid) {
            captures.push(self.capture_of(state.value));
        }
    }
}

/// The journal's calls to its client.
#[derive(Default)]
pub(super) struct Told {
    pub(super) committed: Vec<Tid>,
    pub(super) aborted: Vec<String>,
}

struct ToyClient {
    told: Mutex<Told>,
    cells: Vec<Arc<Cell>>,
}

/// The cell in which a closing transaction stores how many credits were set aside for it.
pub(super) const CLOSING: usize = 7;

impl Client for ToyClient {
    fn closing(&self, handle: &mut Handle<'_>) {
        let credits = u64::from(handle.credits());
        self.cells[CLOSING].change(handle, |_| credits);
    }

    fn capture_parts(&self, host: u64, tid: Tid, captures: &mut Vec<Capture>) {
        for cell in self.cells.iter().filter(|cell| cell.host() == host) {
            cell.capture(tid, captures);
        }
    }

    fn seal(&self, block: BlockNumber, stamp: Stamp, page: &mut [u8]) {
        if stamp == SEALED {
            assert_ne!(page[..8], NO_SEAL.to_le_bytes(), "a bug of the client");
            let sum = seal_of(block, page);
            page[BLOCK - 4..].copy_from_slice(&sum.to_le_bytes());
        }
    }

    fn committed(&self, tid: Tid) {
        self.told.lock().committed.push(tid);
    }

    fn aborted(&self, error: &JournalError) {
        self.told.lock().aborted.push(error.to_string());
    }
}

fn seal_of(block: BlockNumber, page: &[u8]) -> u32 {
    let start = u32::try_from(block.get()).expect("a small device");
    page[..BLOCK - 4]
        .iter()
        .fold(start, |sum, byte| sum.rotate_left(3) ^ u32::from(*byte))
}

/// The bytes of a metadata block that operation `number` wrote, without the seal. Some begin with
/// the journal's magic.
fn pattern(number: u64) -> Vec<u8> {
    let mut page = number.to_le_bytes().repeat(BLOCK / 8);
    if number.is_multiple_of(3) {
        page[..4].copy_from_slice(&pext4_ondisk::journal::header::MAGIC.to_be_bytes());
    }
    page[BLOCK - 4..].fill(0);
    page
}

fn data_pattern(number: u64) -> Vec<u8> {
    (!number).to_le_bytes().repeat(BLOCK / 8)
}

/// A toy over a device.
pub(super) struct Toy {
    pub(super) device: Arc<dyn Device>,
    pub(super) cache: Arc<Cache>,
    pub(super) journal: Arc<Journal>,
    pub(super) cells: Vec<Arc<Cell>>,
    client: Arc<ToyClient>,
}

/// A blank device with a fresh journal of `log_blocks`.
pub(super) fn blank(log_blocks: u32) -> RamDevice {
    let device = RamDevice::new(DEVICE_BLOCKS * BLOCK as u64);
    let superblock = JournalSuperblock::new(BLOCK as u32, log_blocks, [5; 16]);
    device
        .write_at(LOG_START * BLOCK as u64, &superblock.encode())
        .expect("a ram device works");
    device
}

/// The journal's place: in two runs, the later first.
pub(super) fn area(log_blocks: u32) -> LogArea {
    let half = log_blocks / 2;
    let runs = [
        (BlockNumber(LOG_START), half),
        (BlockNumber(LOG_START - 30), 10),
        (
            BlockNumber(LOG_START + u64::from(half) + 3),
            log_blocks - half - 10,
        ),
    ];
    LogArea::new(BLOCK as u32, &runs).expect("runs are apart")
}

/// Replays what a crash left.
pub(super) fn recover(device: &dyn Device, log_blocks: u32) -> Recovered {
    let area = area(log_blocks);
    let mut superblock = recovery::read_superblock(device, &area).expect("a superblock is there");
    recovery::recover(device, &area, &mut superblock, DEVICE_BLOCKS).expect("a sound journal")
}

impl Toy {
    /// A toy on a device that has been recovered.
    pub(super) fn open(device: Arc<dyn Device>, log_blocks: Option<u32>) -> Self {
        Self::open_with(device, log_blocks, NEVER)
    }

    pub(super) fn open_with(
        device: Arc<dyn Device>,
        log_blocks: Option<u32>,
        commit_interval: Duration,
    ) -> Self {
        let log = log_blocks.map(|blocks| {
            let area = area(blocks);
            let superblock = recovery::read_superblock(&device, &area).expect("it is there");
            Log {
                area,
                superblock,
                keeps_checksums: true,
            }
        });
        let cells: Vec<_> = (0..CELLS)
            .map(|index| Arc::new(load_cell(&*device, index)))
            .collect();
        let cache = Arc::new(Cache::new(
            Arc::clone(&device),
            BLOCK as u32,
            64 * BLOCK as u64,
        ));
        let client = Arc::new(ToyClient {
            told: Mutex::new(Class::Leaf, Told::default()),
            cells: cells.clone(),
        });
        let journal = Journal::open(Config {
            cache: Arc::clone(&cache),
            device: Arc::clone(&device),
            log,
            client: Arc::clone(&client) as Arc<dyn Client>,
            commit_interval,
            width: crate::JournalWidth::default(),
        })
        .expect("the journal opens");
        Self {
            device,
            cache,
            journal,
            cells,
            client,
        }
    }

    pub(super) fn told<R>(&self, look: impl FnOnce(&Told) -> R) -> R {
        look(&self.client.told.lock())
    }

    pub(super) fn set_cell(&self, handle: &mut Handle<'_>, cell: usize, number: u64) {
        self.cells[cell].change(handle, |_| number);
    }

    /// Creates a metadata block.
    pub(super) fn create(&self, handle: &mut Handle<'_>, block: u64, number: u64) {
        let buffer = handle.create(BlockNumber(block), SEALED);
        handle.edit(&buffer, SEALED, |page| {
            page.copy_from_slice(&pattern(number))
        });
    }

    /// Makes a metadata block of a data block.
    pub(super) fn create_from_data(&self, handle: &mut Handle<'_>, block: u64, number: u64) {
        let buffer = handle.create_from_data(BlockNumber(block), SEALED);
        handle.edit(&buffer, SEALED, |page| {
            page.copy_from_slice(&pattern(number))
        });
    }

    /// Edits an existing metadata block.
    pub(super) fn edit(&self, handle: &mut Handle<'_>, block: u64, number: u64) {
        let buffer = self
            .cache
            .get(BlockNumber(block))
            .expect("the device reads");
        handle.edit(&buffer, SEALED, |page| {
            page.copy_from_slice(&pattern(number))
        });
    }

    /// Writes a block as data, past the journal.
    pub(super) fn write_data(&self, block: u64, number: u64) {
        self.device
            .write_at(block * BLOCK as u64, &data_pattern(number))
            .expect("the device takes writes");
    }
}

fn load_cell(device: &dyn Device, index: usize) -> Cell {
    let value = read_cell(device, index);
    Cell {
        index,
        state: Mutex::new(
            Class::InodeState,
            CellState {
                value,
                owed: Owed::default(),
            },
        ),
    }
}

/// A cell's home.
pub(super) fn read_cell(device: &dyn Device, index: usize) -> u64 {
    let mut bytes = [0; 8];
    let offset = TABLE * BLOCK as u64 + index as u64 * 8;
    device
        .read_at(offset, &mut bytes)
        .expect("inside the device");
    u64::from_le_bytes(bytes)
}

pub(super) fn read_block(device: &dyn Device, block: u64) -> Vec<u8> {
    let mut page = vec![0; BLOCK];
    device
        .read_at(block * BLOCK as u64, &mut page)
        .expect("inside the device");
    page
}

/// Asserts that a block's home holds what operation `number` wrote, sealed.
pub(super) fn assert_metadata(device: &dyn Device, block: u64, number: u64) {
    let mut expected = pattern(number);
    let sum = seal_of(BlockNumber(block), &expected);
    expected[BLOCK - 4..].copy_from_slice(&sum.to_le_bytes());
    let page = read_block(device, block);
    assert!(
        page == expected,
        "block {block} is not as operation {number} left it"
    );
}

pub(super) fn assert_data(device: &dyn Device, block: u64, number: u64) {
    let page = read_block(device, block);
    assert!(
        page == data_pattern(number),
        "block {block} lost the data of operation {number}"
    );
}

/// A seed for each run of the tests, printed so that a failure can be repeated by setting
/// `PEXT4_SEED`.
pub(super) fn seed() -> u64 {
    static SEED: OnceLock<u64> = OnceLock::new();
    let seed = *SEED.get_or_init(|| match std::env::var("PEXT4_SEED") {
        Ok(text) => text.parse().expect("PEXT4_SEED is a number"),
        Err(_) => u64::from(pext4_sync::time::since_epoch().subsec_nanos()),
    });
    println!("PEXT4_SEED={seed}");
    seed
}
