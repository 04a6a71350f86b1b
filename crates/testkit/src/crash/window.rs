//! Determines which writes survive a power cut.
//!
//! The log of a device is divided into windows between flushes. At a cut within a window everything
//! before the window is durable, and so may be any subset of the writes in it; a write may also be
//! torn at a sector boundary. Small windows are tried exhaustively. In large ones the rig tries: no
//! write kept, all kept, each write lost alone, each kept alone, pairs, and seeded samples.

use std::sync::Arc;

use pext4_block::{Device, Event, RamDevice};

use crate::Random;

/// Bytes that a device writes atomically.
pub const SECTOR: usize = 512;

/// The events between two flushes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// Index of the first event of the window; all earlier events are durable.
    pub start: usize,
    /// The position of the flush that ends the window (or of the log's end), where the cut is.
    pub end: usize,
}

impl Window {
    /// The number of writes in the window.
    #[must_use]
    pub fn writes(&self) -> usize {
        self.end - self.start
    }
}

/// The windows of a log, in order, without empty ones.
#[must_use]
pub fn windows(events: &[Event]) -> Vec<Window> {
    let mut windows = Vec::new();
    let mut start = 0;
    for (position, event) in events.iter().enumerate() {
        if *event == Event::Flush {
            windows.push(Window {
                start,
                end: position,
            });
            start = position + 1;
        }
    }
    windows.push(Window {
        start,
        end: events.len(),
    });
    windows.retain(|window| window.writes() > 0);
    windows
}

/// The fate of one write at a cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    /// It reached the device.
    Kept,
    /// It did not.
    Lost,
    /// Only this many bytes from its start reached the device, up to a sector boundary.
    Head(usize),
    /// Only the bytes after this many reached the device, from a sector boundary on.
    Tail(usize),
    /// The bytes between these two sector boundaries did not reach the device, the others did: one
    /// write of a journal holds a descriptor and many blocks.
    Gap(usize, usize),
}

/// Limits of the number of images.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Windows of up to this many writes are tried exhaustively.
    pub exhaust: usize,
    /// Most images of one window.
    pub window: usize,
    /// Most images of one recording.
    pub total: usize,
}

/// The fates to try in a window, without duplicates, the most informative ones first.
#[must_use]
pub fn fates(
    window: &Window,
    events: &[Event],
    budget: Budget,
    random: &mut Random,
) -> Vec<Vec<Fate>> {
    let count = window.writes();
    let mut all = Vec::new();
    let exhausted = count <= budget.exhaust && 1 << count <= budget.window;
    if exhausted {
        all.extend((0..1_u64 << count).map(|bits| kept_by(count, |index| bits >> index & 1 == 1)));
    } else {
        all.push(kept_by(count, |_| false));
        all.push(kept_by(count, |_| true));
        all.extend(alone_and_pairs(count, budget.window, random));
    }
    all.extend((0..3).filter_map(|_| torn(window, events, random)));
    while !exhausted && all.len() < budget.window {
        let share = random.below(9) + 1;
        all.push(
            (0..count)
                .map(|_| {
                    if random.chance(share, 10) {
                        Fate::Kept
                    } else {
                        Fate::Lost
                    }
                })
                .collect(),
        );
    }
    let mut seen = std::collections::HashSet::new();
    all.retain(|fates| seen.insert(fates.clone()));
    all.truncate(budget.window);
    all
}

fn kept_by(count: usize, keep: impl Fn(usize) -> bool) -> Vec<Fate> {
    (0..count)
        .map(|index| if keep(index) { Fate::Kept } else { Fate::Lost })
        .collect()
}

/// Each write lost alone, each kept alone, pairs lost; a sample if there are too many.
fn alone_and_pairs(count: usize, most: usize, random: &mut Random) -> Vec<Vec<Fate>> {
    let mut picks: Vec<usize> = (0..count).collect();
    while picks.len() > (most / 4).max(1) {
        picks.swap_remove(random.index(picks.len()));
    }
    let mut all = Vec::new();
    for pick in picks {
        all.push(kept_by(count, |index| index != pick));
        all.push(kept_by(count, |index| index == pick));
        let other = random.index(count);
        all.push(kept_by(count, |index| index != pick && index != other));
    }
    all
}

/// One write torn, the others all kept or drawn at random.
fn torn(window: &Window, events: &[Event], random: &mut Random) -> Option<Vec<Fate>> {
    let pick = random.index(window.writes());
    let Event::Write { offset, bytes } = &events[window.start + pick] else {
        return None;
    };
    // Boundaries of the device's sectors within the write.
    let first = SECTOR - (*offset % SECTOR as u64) as usize;
    let edges = bytes.len().saturating_sub(first + 1) / SECTOR + usize::from(first < bytes.len());
    // No implementation can protect the primary superblock from a torn write.
    let superblock = *offset <= 1024 && offset + bytes.len() as u64 > 1024;
    if edges == 0 || superblock {
        return None;
    }
    let [one, other] = [0; 2].map(|_| first + random.index(edges) * SECTOR);
    let share = *random.pick(&[5, 9, 10]);
    let mut fates: Vec<Fate> = (0..window.writes())
        .map(|_| {
            if random.chance(share, 10) {
                Fate::Kept
            } else {
                Fate::Lost
            }
        })
        .collect();
    fates[pick] = match random.below(3) {
        0 => Fate::Head(one),
        1 => Fate::Tail(one),
        _ if one == other => Fate::Lost,
        _ => Fate::Gap(one.min(other), one.max(other)),
    };
    Some(fates)
}

/// The image that results from these fates on a durable image.
#[must_use]
pub fn image(
    durable: &RamDevice,
    events: &[Event],
    window: &Window,
    fates: &[Fate],
) -> Arc<RamDevice> {
    let image = durable.fork();
    for (event, fate) in events[window.start..window.end].iter().zip(fates) {
        suffer(&image, event, *fate);
    }
    Arc::new(image)
}

fn suffer(image: &RamDevice, event: &Event, fate: Fate) {
    let result = match (event, fate) {
        (_, Fate::Lost) => Ok(()),
        (Event::Write { offset, bytes }, Fate::Head(kept)) => {
            image.write_at(*offset, &bytes[..kept])
        }
        (Event::Write { offset, bytes }, Fate::Tail(lost)) => {
            image.write_at(offset + lost as u64, &bytes[lost..])
        }
        (Event::Write { offset, bytes }, Fate::Gap(start, end)) => image
            .write_at(*offset, &bytes[..start])
            .and_then(|()| image.write_at(offset + end as u64, &bytes[end..])),
        (event, _) => event.apply(image),
    };
    result.expect("what was recorded fits the device");
}

/// A short description of fates.
#[must_use]
pub fn tell(window: &Window, events: &[Event], fates: &[Fate]) -> String {
    let lines =
        events[window.start..window.end]
            .iter()
            .zip(fates)
            .map(|(event, fate)| match event {
                Event::Write { offset, bytes } => {
                    format!("  {} bytes at {offset}: {fate:?}", bytes.len())
                }
                Event::Discard { offset, length } => {
                    format!("  discard of {length} at {offset}: {fate:?}")
                }
                Event::Flush => "  flush".to_owned(),
            });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: Budget = Budget {
        exhaust: 5,
        window: 40,
        total: 1000,
    };

    fn write(offset: u64, length: usize) -> Event {
        Event::Write {
            offset,
            bytes: vec![offset as u8 + 1; length].into(),
        }
    }

    #[test]
    fn a_log_falls_into_windows() {
        let events = [
            write(0, 1),
            Event::Flush,
            Event::Flush,
            write(1, 1),
            write(2, 1),
        ];
        let found = windows(&events);
        assert_eq!(
            found,
            [Window { start: 0, end: 1 }, Window { start: 3, end: 5 }]
        );
    }

    #[test]
    fn small_windows_are_exhausted() {
        let events: Vec<Event> = (0..4).map(|index| write(index * 10, 10)).collect();
        let window = Window { start: 0, end: 4 };
        let all = fates(&window, &events, BUDGET, &mut Random::new(1));
        assert_eq!(all.len(), 16);
    }

    #[test]
    fn large_windows_lose_and_keep_each_write_alone() {
        let events: Vec<Event> = (0..9).map(|index| write(4096 * index, 4096)).collect();
        let window = Window { start: 0, end: 9 };
        let budget = Budget {
            window: 100,
            ..BUDGET
        };
        let all = fates(&window, &events, budget, &mut Random::new(1));
        let count = |wanted: Fate, times: usize| {
            all.iter()
                .filter(|fates| fates.iter().filter(|&&fate| fate == wanted).count() == times)
                .count()
        };
        assert!(
            count(Fate::Lost, 1) >= 9 && count(Fate::Kept, 1) >= 9 && count(Fate::Lost, 9) == 1
        );
        assert!(all.len() <= 100);
        let is_torn = |fate: &Fate| matches!(fate, Fate::Head(_) | Fate::Tail(_));
        assert!(all.iter().any(|fates| fates.iter().any(is_torn)));
    }

    #[test]
    fn tears_run_along_the_sectors_of_the_device() {
        let events = [write(4500, 1500)];
        let window = Window { start: 0, end: 1 };
        let mut random = Random::new(1);
        let (mut seen, mut gaps) = (
            std::collections::BTreeSet::new(),
            std::collections::BTreeSet::new(),
        );
        for _ in 0..200 {
            let fates = torn(&window, &events, &mut random).expect("it has edges");
            match fates[0] {
                Fate::Head(at) | Fate::Tail(at) => drop(seen.insert((4500 + at, 4500 + at))),
                Fate::Gap(start, end) => drop(gaps.insert((4500 + start, 4500 + end))),
                Fate::Lost => {}
                Fate::Kept => panic!("{fates:?}"),
            }
        }
        let edges = [4608, 5120, 5632];
        assert_eq!(Vec::from_iter(seen), edges.map(|edge| (edge, edge)));
        let pairs = [(4608, 5120), (4608, 5632), (5120, 5632)];
        assert_eq!(Vec::from_iter(gaps), pairs);
        let within = [write(600, 300)];
        assert_eq!(torn(&window, &within, &mut random), None);
    }

    #[test]
    fn an_image_holds_what_survived() {
        let events = [
            write(0, 512),
            write(1024, 1024),
            write(4096, 1024),
            write(6144, 2048),
        ];
        let window = Window { start: 0, end: 4 };
        let device = RamDevice::new(8192);
        let left = image(
            &device,
            &events,
            &window,
            &[
                Fate::Lost,
                Fate::Head(512),
                Fate::Tail(512),
                Fate::Gap(512, 1536),
            ],
        );
        let mut bytes = [0; 8192];
        left.read_at(0, &mut bytes).expect("within");
        let set: Vec<usize> = (0..16).filter(|sector| bytes[sector * 512] != 0).collect();
        assert_eq!(set, [2, 9, 12, 15]);
    }
}
