//! The buddy compared with an array of flags.

use super::{Buddy, ORDERS, Span};
use fastrand::Rng;

/// A plain array of "free" flags with the same operations.
struct Model(Vec<bool>);

impl Model {
    fn runs(&self) -> Vec<Span> {
        let mut runs: Vec<Span> = Vec::new();
        for (block, _) in self.0.iter().enumerate().filter(|(_, free)| **free) {
            let block = u32::try_from(block).expect("small");
            match runs.last_mut() {
                Some(run) if run.end() == block => run.length += 1,
                _ => runs.push(Span {
                    start: block,
                    length: 1,
                }),
            }
        }
        runs
    }

    fn find_run(&self, from: u32, length: u32) -> Option<Span> {
        self.runs().into_iter().find_map(|run| {
            let start = run.start.max(from);
            (start + length <= run.end()).then_some(Span { start, length })
        })
    }

    fn find_aligned(&self, from: u32, order: u32) -> Option<Span> {
        let length = 1 << order;
        (from.div_ceil(length)..)
            .map(|index| index * length)
            .take_while(|start| ((start + length) as usize) <= self.0.len())
            .find(|&start| (start..start + length).all(|block| self.0[block as usize]))
            .map(|start| Span { start, length })
    }

    fn set(&mut self, span: Span, free: bool) {
        self.0[span.start as usize..span.end() as usize].fill(free);
    }
}

/// How many runs of each order there are after cutting off the largest aligned run from the start
/// of each run, again and again.
fn aligned_runs(runs: &[Span]) -> [u32; ORDERS] {
    let mut counts = [0; ORDERS];
    for run in runs {
        let mut start = run.start;
        while start < run.end() {
            let order = (run.end() - start).ilog2().min(start.trailing_zeros());
            counts[order as usize] += 1;
            start += 1 << order;
        }
    }
    counts
}

fn compare(buddy: &Buddy, model: &Model, random: &mut Rng) {
    buddy.check().expect("whole");
    let runs = model.runs();
    assert_eq!(buddy.fragments() as usize, runs.len());
    assert_eq!(buddy.free(), runs.iter().map(|run| run.length).sum::<u32>());
    assert_eq!(buddy.first_free(), runs.first().map(|run| run.start));
    assert_eq!(buddy.runs_by_order(), aligned_runs(&runs));
    let from = random.u32(..buddy.blocks());
    let length = 1 + random.u32(..40);
    assert_eq!(
        buddy.find_run(from, length),
        model.find_run(from, length),
        "run {from} {length}"
    );
    let order = random.u32(..8);
    assert_eq!(
        buddy.find_aligned(from, order),
        model.find_aligned(from, order),
        "aligned {from} {order}"
    );
    let at = runs
        .iter()
        .find(|run| run.start <= from && from < run.end());
    assert_eq!(
        buddy.run_at(from, u32::MAX),
        at.map_or(0, |run| run.end() - from)
    );
    let largest = (0..20)
        .rev()
        .find(|&order| model.find_aligned(0, order).is_some());
    assert_eq!(buddy.largest_order(), largest);
}

fn mixed_life(blocks: u32, seed: u64) {
    println!("blocks {blocks} seed {seed}");
    let mut random = Rng::with_seed(seed);
    let mut buddy = Buddy::new(blocks);
    let mut model = Model(vec![false; blocks as usize]);
    for _ in 0..600 {
        let span = Span {
            start: random.u32(..blocks),
            length: 1 + random.u32(..70),
        };
        let span = Span {
            length: span.length.min(blocks - span.start),
            ..span
        };
        let inside = &model.0[span.start as usize..span.end() as usize];
        if inside.iter().all(|free| *free) {
            buddy.take(span);
            model.set(span, false);
        } else if inside.iter().all(|free| !free) {
            buddy.release(span);
            model.set(span, true);
        }
        compare(&buddy, &model, &mut random);
    }
}

#[test]
fn behaves_like_an_array_of_flags() {
    for (seed, blocks) in [
        (1, 1),
        (2, 63),
        (3, 64),
        (4, 300),
        (5, 1024),
        (6, 1023),
        (7, 777),
    ] {
        mixed_life(blocks, seed);
    }
}

#[test]
fn reads_a_bitmap_of_the_disk() {
    for (blocks, seed) in [(8u32, 1u64), (100, 2), (1000, 3), (4096, 4)] {
        println!("blocks {blocks} seed {seed}");
        let mut random = Rng::with_seed(seed);
        let mut model = Model(vec![false; blocks as usize]);
        let mut bitmap = vec![0xFFu8; (blocks as usize).div_ceil(8) + 3];
        for block in 0..blocks {
            if random.u32(..5) > 1 {
                bitmap[block as usize / 8] &= !(1 << (block % 8));
                model.0[block as usize] = true;
            }
        }
        // Bits beyond the group are ignored.
        *bitmap.last_mut().expect("not empty") = 0;
        let buddy = Buddy::from_bitmap(&bitmap, blocks);
        for _ in 0..50 {
            compare(&buddy, &model, &mut random);
        }
    }
}

#[test]
fn a_whole_group_is_one_run() {
    let mut buddy = Buddy::new(32768);
    assert_eq!((buddy.largest_order(), buddy.find_large(9)), (None, None));
    buddy.release(Span {
        start: 0,
        length: 32768,
    });
    assert_eq!((buddy.largest_order(), buddy.fragments()), (Some(15), 1));
    buddy.take(Span {
        start: 100,
        length: 1,
    });
    assert_eq!((buddy.largest_order(), buddy.fragments()), (Some(14), 2));
    assert_eq!(
        buddy.find_large(u32::MAX),
        Some(Span {
            start: 101,
            length: 32667
        })
    );
    buddy.check().expect("whole");
}

#[test]
#[should_panic(expected = "only used blocks are released")]
fn a_run_is_not_released_twice() {
    let mut buddy = Buddy::new(64);
    buddy.release(Span {
        start: 5,
        length: 2,
    });
    buddy.release(Span {
        start: 6,
        length: 1,
    });
}
