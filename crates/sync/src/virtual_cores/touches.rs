//! What a core touches, in cache lines: what it waits for, and what it requests ahead.
//!
//! A lock's word and its own lines are touched when it is taken. The lines behind its pointers,
//! whose number its class declares, are owed until it is released: if the core tells meanwhile what
//! it uses of what the innermost of its locks guards, it owes nothing for that lock. A lock that is
//! entered through a slot of a bias is not known here; what is told while it is held counts for the
//! lock around it, if that owes anything.

use std::ops::Range;

use super::lines::{Label, LineAccess, behind};
use super::machine::{Machine, Owing};
use crate::memory::LINE;
use crate::order::Class;
use crate::watch::{LockUse, Site};

impl Machine {
    /// Touches a line; returns the picoseconds that its transfer took.
    fn touch(&mut self, core: usize, number: usize, label: Label, write: bool) -> u64 {
        self.touch_together(core, std::iter::once(number), label, write, 0)
    }

    /// Touches lines that are requested together, and together with one whose transfer takes
    /// `ahead` picoseconds; returns the longest transfer.
    fn touch_together(
        &mut self,
        core: usize,
        numbers: impl Iterator<Item = usize>,
        label: Label,
        write: bool,
        mut ahead: u64,
    ) -> u64 {
        for number in numbers {
            let visit = LineAccess {
                core,
                clock: self.cores[core].clock,
                write,
                model: &self.model,
                processors: &self.processors,
                ahead,
            };
            let arrival = self.lines.touch(number, label, visit);
            self.cores[core].clock = arrival.clock;
            // If it waits for a lock, this is a part of that wait.
            if !self.is_queueing(core) {
                self.cores[core].queued += arrival.waited;
            }
            ahead = ahead.max(arrival.distance);
        }
        ahead
    }

    /// Reads or writes an atomic.
    pub(crate) fn access(&mut self, address: usize, write: bool, site: Site) {
        self.touch(self.current, address / LINE, Label::At(site), write);
    }

    /// Reads or writes memory that a lock guards: its lines together with one whose transfer takes
    /// `ahead` picoseconds, or each after the one before it has arrived. Returns the longest
    /// transfer of those requested together.
    pub(crate) fn touch_memory(
        &mut self,
        memory: Range<usize>,
        write: bool,
        ahead: Option<u64>,
        site: Site,
    ) -> u64 {
        let (core, label) = (self.current, Label::At(site));
        if let Some(innermost) = self.me().owing.last_mut() {
            innermost.told = true;
        }
        let lines = lines_of(memory);
        match ahead {
            Some(ahead) => self.touch_together(core, lines, label, write, ahead),
            None => {
                for line in lines {
                    self.touch(core, line, label, write);
                }
                0
            }
        }
    }

    /// Requests memory for writing without waiting for it: its lines together.
    pub(crate) fn fetch(&mut self, memory: Range<usize>, site: Site) {
        let core = self.current;
        let (mut at, mut ahead) = (self.me().clock, 0);
        for number in lines_of(memory) {
            let visit = LineAccess {
                core,
                clock: at,
                write: true,
                model: &self.model,
                processors: &self.processors,
                ahead,
            };
            let arrival = self.lines.fetch(number, Label::At(site), visit);
            at = arrival.clock;
            ahead = ahead.max(arrival.distance);
        }
    }

    /// Touches the line of the lock's word; returns the picoseconds that its transfer took.
    pub(super) fn touch_word(&mut self, core: usize, lock_use: &LockUse, write: bool) -> u64 {
        self.touch(
            core,
            lock_use.address / LINE,
            Label::Lock(lock_use.class),
            write,
        )
    }

    /// Touches the lines of the lock itself, which move with its word, whose transfer took `word`.
    /// The lines behind its pointers are paid for later.
    pub(super) fn touch_content(&mut self, core: usize, lock_use: &LockUse, word: u64) {
        let label = Label::Lock(lock_use.class);
        let last = (lock_use.address + lock_use.bytes.max(1) - 1) / LINE;
        let own = lock_use.address / LINE + 1..=last;
        self.touch_together(core, own, label, lock_use.exclusive, word);
        if behind(lock_use.class) > 0 {
            self.cores[core].owing.push(Owing {
                address: lock_use.address,
                told: false,
            });
        }
    }

    /// Touches the lines behind the pointers of a lock that is released, unless what it guards was
    /// told.
    pub(super) fn touch_behind(&mut self, core: usize, lock_use: &LockUse) {
        let owing = &mut self.cores[core].owing;
        let position = owing
            .iter()
            .rposition(|owing| owing.address == lock_use.address);
        if position.is_some_and(|position| !owing.remove(position).told) {
            let lines = lines_behind(lock_use.address, lock_use.class);
            let label = Label::Lock(lock_use.class);
            self.touch_together(core, lines, label, lock_use.exclusive, 0);
        }
    }

    /// Drops all copies of the lines of freed memory: a real allocator keeps it for the core that
    /// freed it, which has it in its cache, while here all cores share one allocator. The locks and
    /// lines that will be there next are others, whose use is counted anew.
    pub(crate) fn forget(&mut self, address: usize, bytes: usize) {
        let end = address + bytes;
        for number in lines_of(address..end) {
            self.lines.forget(number);
        }
        let freed: Vec<usize> = self.addresses.range(address..end).copied().collect();
        for address in freed {
            if let Some(lock) = self.locks.get(&address) {
                lines_behind(address, lock.class).for_each(|number| self.lines.forget(number));
            }
            self.end_lock(address);
        }
    }
}

/// The numbers of the lines of this memory.
fn lines_of(memory: Range<usize>) -> Range<usize> {
    if memory.is_empty() {
        return 0..0;
    }
    memory.start / LINE..memory.end.div_ceil(LINE)
}

/// The lines that a lock's critical section changes behind a pointer.
fn lines_behind(address: usize, class: Class) -> impl Iterator<Item = usize> {
    // No address of this program is that large, so these lines belong to no object.
    (0..behind(class)).map(move |number| usize::MAX - address * 8 - number)
}
