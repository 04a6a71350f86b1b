//! The numbers that the seeds' authors published, unchanged. They come from other machines: the
//! shapes of curves can be compared with ours, their heights cannot.

/// The unit of published numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Operations a second of each task.
    PerTask,
    /// Operations a second, all tasks together.
    Total,
    /// Seconds for the same work of each task.
    Seconds,
}

impl Unit {
    /// The unit as tables show it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::PerTask => "operations/s per task",
            Self::Total => "operations/s in total",
            Self::Seconds => "seconds for the same work of each task",
        }
    }
}

/// A published curve.
#[derive(Debug)]
pub struct Curve {
    /// The workload's name.
    pub workload: &'static str,
    /// The part of it, for one that has several.
    pub part: Option<&'static str>,
    /// The change, and whether the curve was measured before or after it.
    pub label: &'static str,
    /// Whether it shows ext4 before the change; otherwise after it.
    pub is_before: bool,
    /// The machine on which it was measured.
    pub machine: &'static str,
    /// The publication.
    pub source: &'static str,
    /// The unit of the values.
    pub unit: Unit,
    /// Numbers of tasks, each with its value.
    pub points: &'static [(u32, f64)],
}

const V1: &str = "block allocation v1, Baokun Li, 2025-05";
const V3: &str = "block allocation v3, Baokun Li, 2025-07";
const KUNPENG: &str = "Kunpeng 920, 480 GB SSD";
const KUNPENG_80: &str = "Kunpeng 920, 960 GB SSD";
const EPYC: &str = "2 x EPYC 9654, 960 GB SSD";
const XEON_80: &str = "80-CPU Xeon, SSD";
const ORPHAN: &str = "orphan file, Jan Kara, 2021 (02f310fc)";
const LOCKLESS: &str = "orphan file, Jan Kara, 2021 (4a79a98c)";
const INODE: &str = "new inode, Wang Shilong, 2017 (901ed070)";
const XEON_48: &str = "2 x E5-2690 v3, RAID 1 of SSDs, mean of 3 runs";

const fn fallocate2(
    label: &'static str,
    is_before: bool,
    machine: &'static str,
    source: &'static str,
    points: &'static [(u32, f64)],
) -> Curve {
    let (workload, part, unit) = ("fallocate2", None, Unit::PerTask);
    Curve {
        workload,
        part,
        label,
        is_before,
        machine,
        source,
        unit,
        points,
    }
}

const fn orphan(
    label: &'static str,
    is_before: bool,
    source: &'static str,
    points: &'static [(u32, f64)],
) -> Curve {
    let (workload, part, unit) = ("stress-orphan", None, Unit::Seconds);
    Curve {
        workload,
        part,
        label,
        is_before,
        machine: XEON_80,
        source,
        unit,
        points,
    }
}

const fn mdtest(
    part: &'static str,
    label: &'static str,
    is_before: bool,
    points: &'static [(u32, f64)],
) -> Curve {
    let (workload, unit) = ("mdtest", Unit::Total);
    let part = Some(part);
    Curve {
        workload,
        part,
        label,
        is_before,
        machine: XEON_48,
        source: INODE,
        unit,
        points,
    }
}

/// All published curves.
pub static CURVES: &[Curve] = &[
    fallocate2(
        "base",
        true,
        KUNPENG,
        V1,
        &[
            (1, 295_287.0),
            (2, 70_665.0),
            (4, 33_865.0),
            (8, 19_387.0),
            (16, 10_104.0),
            (32, 5_588.0),
            (64, 3_588.0),
        ],
    ),
    fallocate2(
        "v1, linear scan",
        false,
        KUNPENG,
        V1,
        &[
            (1, 286_328.0),
            (2, 123_102.0),
            (4, 119_542.0),
            (8, 90_653.0),
            (16, 60_344.0),
            (32, 35_302.0),
            (64, 23_280.0),
        ],
    ),
    fallocate2(
        "v1, mb_optimize_scan",
        false,
        KUNPENG,
        V1,
        &[
            (1, 292_498.0),
            (2, 133_305.0),
            (4, 103_069.0),
            (8, 61_727.0),
            (16, 29_702.0),
            (32, 16_845.0),
            (64, 10_430.0),
        ],
    ),
    fallocate2(
        "base, linear scan",
        true,
        KUNPENG_80,
        V3,
        &[(1, 314_065.0), (80, 2_667.0)],
    ),
    fallocate2(
        "v3, linear scan",
        false,
        KUNPENG_80,
        V3,
        &[(1, 316_724.0), (80, 20_049.0)],
    ),
    fallocate2(
        "base, mb_optimize_scan",
        true,
        KUNPENG_80,
        V3,
        &[(1, 316_344.0), (80, 2_643.0)],
    ),
    fallocate2(
        "v3, mb_optimize_scan",
        false,
        KUNPENG_80,
        V3,
        &[(1, 328_324.0), (80, 19_342.0)],
    ),
    fallocate2(
        "base, linear scan",
        true,
        EPYC,
        V3,
        &[(1, 205_851.0), (96, 3_450.0)],
    ),
    fallocate2(
        "v3, linear scan",
        false,
        EPYC,
        V3,
        &[(1, 215_136.0), (96, 52_125.0)],
    ),
    fallocate2(
        "base, mb_optimize_scan",
        true,
        EPYC,
        V3,
        &[(1, 207_373.0), (96, 3_209.0)],
    ),
    fallocate2(
        "v3, mb_optimize_scan",
        false,
        EPYC,
        V3,
        &[(1, 209_431.0), (96, 50_331.0)],
    ),
    orphan(
        "vanilla",
        true,
        ORPHAN,
        &[
            (1, 1.0572),
            (2, 1.6804),
            (4, 2.5470),
            (8, 7.0494),
            (16, 14.8278),
            (32, 40.9482),
            (64, 87.7874),
            (128, 206.504),
        ],
    ),
    orphan(
        "orphan file, locked",
        false,
        ORPHAN,
        &[
            (1, 0.9456),
            (2, 1.3318),
            (4, 1.9950),
            (8, 6.4242),
            (16, 14.9376),
            (32, 33.0382),
            (64, 60.8236),
            (128, 122.9414),
        ],
    ),
    orphan(
        "orphan file, lockless",
        false,
        LOCKLESS,
        &[
            (1, 0.9394),
            (2, 1.2466),
            (4, 1.7806),
            (8, 4.9000),
            (16, 8.5164),
            (32, 24.5656),
            (64, 39.8446),
            (128, 70.9504),
        ],
    ),
    mdtest("creation", "without patch", true, &[(48, 80_124.0)]),
    mdtest("creation", "with patch", false, &[(48, 812_480.0)]),
    mdtest("removal", "without patch", true, &[(48, 287_801.0)]),
    mdtest("removal", "with patch", false, &[(48, 300_692.0)]),
];

/// Published facts about a workload that are no curves: one line each.
#[must_use]
pub fn remarks(workload: &str) -> &'static [&'static str] {
    match workload {
        "falloc-append" => &[
            "block allocation v3, 64 jobs of fio, 4 KiB appends to 1 GiB files on 200 GiB,",
            "base -> patched (linear scan; mb_optimize_scan):",
            "  bandwidth         217 -> 5718 MiB/s         217 -> 5626 MiB/s",
            "  extents a file    261967 -> 588             261973 -> 570",
            "  average extent    4 -> 1780 KiB             4 -> 1837 KiB",
            "  score             100 -> 2                  100 -> 2",
            "  free extents      71 -> 105                 71 -> 118",
            "  average free      1943732 -> 1316212 KiB    1943732 -> 1171208 KiB",
        ],
        "xattr-share" => &[
            "rewrite of the cache, Jan Kara, 2016 (82939d79), 64 processes with 10 files each,",
            "before -> after: 10 values 61.3 -> 2.80 s, 100 values 7.94 -> 2.50 s,",
            "1000 values 6.45 -> 4.80 s; one process alone: equal.",
        ],
        "aim7-mix" => &[
            "mbcache scalability v5, T Makphaibulchoke, 2014; 2000 users, inodes of 128 bytes, gain:",
            "  60 cores: alltests +74.69 %, custom +77.1 %, disk +125.02 %, fserver +113.22 %,",
            "            new_dbase +21.17 %, new_fserver +70.31 %, shared +52.56 %",
            "  80 cores: custom +74.29 %, disk +61.01 %, fserver +11.59 %, new_fserver +32.76 %",
            "  20 cores: none. On a ram disk: none, on any machine.",
        ],
        _ => &[],
    }
}

/// The published curves of a part of a workload.
pub fn of(workload: &str, part: &str) -> impl Iterator<Item = &'static Curve> {
    // The parts that are distinguished here were distinguished there.
    CURVES
        .iter()
        .filter(move |curve| curve.workload == workload && curve.part.is_none_or(|own| own == part))
}

impl Curve {
    /// The value at a number of tasks, if it was published.
    #[must_use]
    pub fn at(&self, tasks: u32) -> Option<f64> {
        let found = self.points.iter().find(|(at, _)| *at == tasks);
        found.map(|(_, value)| *value)
    }

    /// Each task's rate divided by the rate of one task alone, where that was published.
    #[must_use]
    pub fn share(&self, tasks: u32) -> Option<f64> {
        let (one, now) = (self.at(1)?, self.at(tasks)?);
        Some(match self.unit {
            Unit::PerTask => now / one,
            Unit::Total => now / one / f64::from(tasks),
            Unit::Seconds => one / now,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{CURVES, Unit, of};
    use crate::workloads::find;

    #[test]
    fn curves_belong_to_workloads_and_their_parts() {
        for curve in CURVES {
            let workload = find(curve.workload).unwrap();
            if let Some(part) = curve.part {
                assert!(workload.parts().contains(&part), "{part}");
            }
            assert!(curve.points.is_sorted_by(|one, two| one.0 < two.0));
        }
    }

    #[test]
    fn shares_are_of_one_task() {
        let base = of("fallocate2", "operations").next().unwrap();
        let share = base.share(64).unwrap();
        assert!((share - 0.012_15).abs() < 1e-4, "1.2 % at 64: {share}");
        let vanilla = of("stress-orphan", "operations").next().unwrap();
        assert_eq!(vanilla.unit, Unit::Seconds);
        assert!((vanilla.share(128).unwrap() - 1.0572 / 206.504).abs() < 1e-9);
        let creation = of("mdtest", "creation").next().unwrap();
        assert_eq!(creation.share(48), None, "one task alone was not published");
    }

    /// Every run in the table of the new-inode patch, creation and removal, without the patch and
    /// with it.
    #[test]
    fn means_are_of_the_runs_that_were_published() {
        let runs: [(&str, bool, [f64; 3]); 4] = [
            ("creation", true, [79_033.0, 81_463.0, 79_875.0]),
            ("creation", false, [810_669.0, 812_805.0, 813_965.0]),
            ("removal", true, [289_569.0, 285_359.0, 288_475.0]),
            ("removal", false, [301_694.0, 302_711.0, 297_670.0]),
        ];
        for (part, is_before, rates) in runs {
            let mean = (rates.iter().sum::<f64>() / 3.0).round();
            let curve = of("mdtest", part).find(|curve| curve.is_before == is_before);
            assert_eq!(curve.unwrap().points, [(48, mean)], "{part}");
        }
    }
}
