//! Fields of a superblock that are more than one number on disk: joined halves, words as flags.
//!
//! Each `read_` function is next to its `write_`, and both use the same raw fields.

use zerocopy::little_endian::U32;

use super::raw::RawSuperblock;
use super::{ErrorPolicy, ErrorRecord, Flags, State, Superblock};
use crate::feature::{Compat, Features, Incompat, ReadOnlyCompat};
use crate::number::{BlockNumber, InodeNumber};

impl Superblock {
    /// Reads sizes, features and hash parameters.
    pub(super) fn read_identity(&mut self, raw: &RawSuperblock) {
        self.features = Features {
            compat: Compat::from_bits_retain(raw.s_feature_compat.get()),
            incompat: Incompat::from_bits_retain(raw.s_feature_incompat.get()),
            read_only_compat: ReadOnlyCompat::from_bits_retain(raw.s_feature_ro_compat.get()),
        };
        let wide = self.features.has_incompat(Incompat::SIXTY_FOUR_BIT);
        let join = |low: U32, high: U32| {
            u64::from(low.get()) | if wide { u64::from(high.get()) << 32 } else { 0 }
        };
        self.blocks_count = join(raw.s_blocks_count_lo, raw.s_blocks_count_hi);
        self.reserved_blocks = join(raw.s_r_blocks_count_lo, raw.s_r_blocks_count_hi);
        self.free_blocks = join(raw.s_free_blocks_count_lo, raw.s_free_blocks_count_hi);
        self.flags = Flags::from_bits_retain(raw.s_flags.get());
        self.hash_seed = raw.s_hash_seed.map(U32::get);
        self.backup_groups = raw.s_backup_bgs.map(U32::get);
    }

    pub(super) fn write_identity(&self, raw: &mut RawSuperblock) {
        raw.s_feature_compat = self.features.compat.bits().into();
        raw.s_feature_incompat = self.features.incompat.bits().into();
        raw.s_feature_ro_compat = self.features.read_only_compat.bits().into();
        let wide = self.features.has_incompat(Incompat::SIXTY_FOUR_BIT);
        let split = |value: u64, low: &mut U32, high: &mut U32| {
            let [low_half, high_half] = halves(value);
            *low = low_half.into();
            if wide {
                *high = high_half.into();
            }
        };
        split(
            self.blocks_count,
            &mut raw.s_blocks_count_lo,
            &mut raw.s_blocks_count_hi,
        );
        split(
            self.reserved_blocks,
            &mut raw.s_r_blocks_count_lo,
            &mut raw.s_r_blocks_count_hi,
        );
        split(
            self.free_blocks,
            &mut raw.s_free_blocks_count_lo,
            &mut raw.s_free_blocks_count_hi,
        );
        raw.s_flags = self.flags.bits().into();
        raw.s_hash_seed = self.hash_seed.map(U32::new);
        raw.s_backup_bgs = self.backup_groups.map(U32::new);
    }

    /// Times, state and errors.
    pub(super) fn read_history(&mut self, raw: &RawSuperblock) {
        self.mount_time = join_time(raw.s_mtime, raw.s_mtime_hi);
        self.write_time = join_time(raw.s_wtime, raw.s_wtime_hi);
        self.check_time = join_time(raw.s_lastcheck, raw.s_lastcheck_hi);
        self.make_time = join_time(raw.s_mkfs_time, raw.s_mkfs_time_hi);
        self.state = State::from_bits_retain(raw.s_state.get());
        self.errors = ErrorPolicy::from_raw(raw.s_errors.get());
        self.first_error = ErrorRecord {
            time: join_time(raw.s_first_error_time, raw.s_first_error_time_hi),
            inode: raw.s_first_error_ino.get(),
            block: raw.s_first_error_block.get(),
            function: raw.s_first_error_func,
            line: raw.s_first_error_line.get(),
            code: raw.s_first_error_errcode,
        };
        self.last_error = ErrorRecord {
            time: join_time(raw.s_last_error_time, raw.s_last_error_time_hi),
            inode: raw.s_last_error_ino.get(),
            block: raw.s_last_error_block.get(),
            function: raw.s_last_error_func,
            line: raw.s_last_error_line.get(),
            code: raw.s_last_error_errcode,
        };
    }

    pub(super) fn write_history(&self, raw: &mut RawSuperblock) {
        (raw.s_mtime, raw.s_mtime_hi) = split_time(self.mount_time);
        (raw.s_wtime, raw.s_wtime_hi) = split_time(self.write_time);
        (raw.s_lastcheck, raw.s_lastcheck_hi) = split_time(self.check_time);
        (raw.s_mkfs_time, raw.s_mkfs_time_hi) = split_time(self.make_time);
        raw.s_state = self.state.bits().into();
        raw.s_errors = self.errors.to_raw().into();
        let first = &self.first_error;
        (raw.s_first_error_time, raw.s_first_error_time_hi) = split_time(first.time);
        raw.s_first_error_ino = first.inode.into();
        raw.s_first_error_block = first.block.into();
        raw.s_first_error_func = first.function;
        raw.s_first_error_line = first.line.into();
        raw.s_first_error_errcode = first.code;
        let last = &self.last_error;
        (raw.s_last_error_time, raw.s_last_error_time_hi) = split_time(last.time);
        raw.s_last_error_ino = last.inode.into();
        raw.s_last_error_block = last.block.into();
        raw.s_last_error_func = last.function;
        raw.s_last_error_line = last.line.into();
        raw.s_last_error_errcode = last.code;
    }

    /// Inodes and blocks with a role.
    pub(super) fn read_inodes(&mut self, raw: &RawSuperblock) {
        self.journal_inode = InodeNumber(raw.s_journal_inum.get());
        self.last_orphan = InodeNumber(raw.s_last_orphan.get());
        self.journal_backup = raw.s_jnl_blocks.map(U32::get);
        self.mmp_block = BlockNumber(raw.s_mmp_block.get());
        self.user_quota_inode = InodeNumber(raw.s_usr_quota_inum.get());
        self.group_quota_inode = InodeNumber(raw.s_grp_quota_inum.get());
        self.project_quota_inode = InodeNumber(raw.s_prj_quota_inum.get());
        self.lost_found_inode = InodeNumber(raw.s_lpf_ino.get());
        self.orphan_file_inode = InodeNumber(raw.s_orphan_file_inum.get());
    }

    pub(super) fn write_inodes(&self, raw: &mut RawSuperblock) {
        raw.s_journal_inum = self.journal_inode.get().into();
        raw.s_last_orphan = self.last_orphan.get().into();
        raw.s_jnl_blocks = self.journal_backup.map(U32::new);
        raw.s_mmp_block = self.mmp_block.get().into();
        raw.s_usr_quota_inum = self.user_quota_inode.get().into();
        raw.s_grp_quota_inum = self.group_quota_inode.get().into();
        raw.s_prj_quota_inum = self.project_quota_inode.get().into();
        raw.s_lpf_ino = self.lost_found_inode.get().into();
        raw.s_orphan_file_inum = self.orphan_file_inode.get().into();
    }
}

/// Low and high half.
fn halves(value: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = value.to_le_bytes();
    [
        u32::from_le_bytes([a, b, c, d]),
        u32::from_le_bytes([e, f, g, h]),
    ]
}

/// Superblock times are 40 bits, unsigned.
fn join_time(low: U32, high: u8) -> i64 {
    i64::from(low.get()) | i64::from(high) << 32
}

fn split_time(seconds: i64) -> (U32, u8) {
    let clamped = u64::try_from(seconds).unwrap_or(0).min((1 << 40) - 1);
    let [low, high] = halves(clamped);
    (low.into(), u8::try_from(high).expect("clamped to 40 bits"))
}
