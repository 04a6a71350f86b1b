//! A small text plot: both axes logarithmic, one character for each curve.

use std::fmt::Write;

use super::number::thousands;

const WIDTH: usize = 57;
const HEIGHT: usize = 14;

/// A curve: its name, its mark, and its points, all coordinates above zero.
pub struct Curve {
    pub name: String,
    pub mark: char,
    pub points: Vec<(f64, f64)>,
}

/// How far from its cell a mark may be, if other marks are there.
const BESIDE: usize = 6;

/// The marks of curves, in their order. Marks of equal points stand side by side.
pub const MARKS: [char; 12] = ['o', 'x', '+', '#', '*', '@', '%', '&', '=', '$', '^', '~'];

/// Draws the curves over a number of tasks.
#[must_use]
pub fn plot(curves: &[Curve]) -> String {
    let points = || curves.iter().flat_map(|curve| curve.points.iter().copied());
    let xs = Range::of(points().map(|(x, _)| x));
    let ys = Range::of(points().map(|(_, y)| y));
    let (Some(xs), Some(ys)) = (xs, ys) else {
        return String::new();
    };
    let mut cells = vec![[' '; WIDTH]; HEIGHT];
    for curve in curves {
        for &(x, y) in &curve.points {
            let (column, row) = (xs.place(x, WIDTH), ys.place(y, HEIGHT));
            mark_beside(&mut cells[HEIGHT - 1 - row], column, curve.mark);
        }
    }
    frame(&cells, xs, ys, points().map(|(x, _)| x))
}

/// Puts a mark into the nearest free cell of its row, so that it hides no other curve's.
fn mark_beside(row: &mut [char; WIDTH], column: usize, mark: char) {
    let beside = (0..=BESIDE).flat_map(|step| [column + step, column.wrapping_sub(step)]);
    let free = beside.into_iter().find(|&at| row.get(at) == Some(&' '));
    row[free.unwrap_or(column)] = mark;
}

fn frame(
    cells: &[[char; WIDTH]],
    xs: Range,
    ys: Range,
    ticks: impl Iterator<Item = f64>,
) -> String {
    let label = |row: usize| match row {
        0 => thousands(ys.most),
        row if row == HEIGHT / 2 => thousands(ys.least * (ys.most / ys.least).sqrt()),
        row if row == HEIGHT - 1 => thousands(ys.least),
        _ => String::new(),
    };
    let mut text = String::new();
    for (row, cells) in cells.iter().enumerate() {
        let line: String = cells.iter().collect();
        writeln!(text, "{:>12} |{}", label(row), line.trim_end()).expect("a string has room");
    }
    let mut axis = [' '; WIDTH + 6];
    for tick in ticks {
        let column = xs.place(tick, WIDTH);
        for (at, digit) in axis[column..].iter_mut().zip(thousands(tick).chars()) {
            *at = digit;
        }
    }
    let axis: String = axis.iter().collect();
    writeln!(text, "{:>12} +{}", "", "-".repeat(WIDTH)).expect("a string has room");
    writeln!(text, "{:>12}  {}", "tasks", axis.trim_end()).expect("a string has room");
    text
}

/// The ends of an axis.
#[derive(Clone, Copy)]
struct Range {
    least: f64,
    most: f64,
}

impl Range {
    fn of(values: impl Iterator<Item = f64> + Clone) -> Option<Self> {
        let least = values
            .clone()
            .filter(|value| *value > 0.0)
            .fold(f64::INFINITY, f64::min);
        let most = values.fold(0.0, f64::max);
        (least <= most).then_some(Self { least, most })
    }

    /// The cell of a value among `cells`.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped before"
    )]
    #[expect(clippy::cast_precision_loss, reason = "a terminal is small")]
    fn place(self, value: f64, cells: usize) -> usize {
        let span = (self.most / self.least).ln();
        let last = (cells - 1) as f64;
        if span <= 0.0 || value <= 0.0 {
            return 0;
        }
        ((value / self.least).ln() / span * last)
            .round()
            .clamp(0.0, last) as usize
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{Curve, HEIGHT, MARKS, plot};
    use crate::setup::ablation;

    #[test]
    fn every_setting_of_an_ablation_has_a_mark_of_its_own() {
        assert!(ablation().expect("switches").len() <= MARKS.len());
        let different: BTreeSet<char> = MARKS.into_iter().collect();
        assert_eq!(different.len(), MARKS.len());
    }

    #[test]
    fn ends_lie_in_the_corners() {
        let curve = |mark, points: &[(f64, f64)]| Curve {
            name: String::new(),
            mark,
            points: points.to_vec(),
        };
        let text = plot(&[
            curve('o', &[(1.0, 100.0), (8.0, 800.0)]),
            curve('x', &[(1.0, 800.0), (8.0, 100.0)]),
        ]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), HEIGHT + 2);
        assert!(
            lines[0].starts_with("         800 |x") && lines[0].ends_with('o'),
            "{text}"
        );
        assert!(lines[HEIGHT - 1].starts_with("         100 |o"), "{text}");
        assert!(lines[HEIGHT - 1].ends_with('x'), "{text}");
        assert!(lines[HEIGHT + 1].starts_with("       tasks  1"), "{text}");
        assert!(lines[HEIGHT + 1].ends_with('8'), "{text}");
    }

    #[test]
    fn equal_points_hide_none() {
        let curve = |mark| Curve {
            name: String::new(),
            mark,
            points: vec![(1.0, 100.0), (8.0, 800.0)],
        };
        let text = plot(&['o', 'x', '+'].map(curve));
        let first = text.lines().next().expect("a line");
        assert!(first.ends_with("+xo"), "{first}");
        let last = text.lines().nth(HEIGHT - 1).expect("a line");
        assert!(last.ends_with("|ox+"), "{last}");
    }

    #[test]
    fn one_point_and_none() {
        let one = Curve {
            name: String::new(),
            mark: 'o',
            points: vec![(1.0, 5.0)],
        };
        assert!(plot(&[one]).contains('o'));
        assert!(plot(&[]).is_empty());
    }
}
