//! The frame of a panel: the mapping from values to coordinates.

use super::{Figure, PANEL, Panel};

/// Maps values to coordinates.
pub struct Frame {
    pub left: f64,
    pub top: f64,
    pub tasks: (f64, f64),
    pub values: (f64, f64),
}

impl Frame {
    pub fn of(figure: &Figure, panel: Panel, left: f64) -> Option<Self> {
        let points = || figure.curves.iter().flat_map(|curve| curve.points.iter());
        let tasks = points().map(|point| f64::from(point.tasks));
        let most_tasks = tasks.clone().fold(1.0, f64::max);
        // The ends of the measured ranges belong to the frame as well as the rates.
        let values = points()
            .flat_map(|point| {
                let (least, most) = point.range.unwrap_or((point.rate, point.rate));
                [point.rate, least, most].map(|rate| panel.value(point.tasks, rate))
            })
            .filter(|value| *value > 0.0);
        let least = values.clone().fold(f64::INFINITY, f64::min);
        let most = values.fold(0.0, f64::max);
        (least <= most).then(|| Self {
            left,
            top: figure.top(),
            tasks: (1.0, most_tasks.max(2.0)),
            values: decades(least, most),
        })
    }

    pub fn bottom(&self) -> f64 {
        self.top + PANEL.1
    }

    pub fn right(&self) -> f64 {
        self.left + PANEL.0
    }

    pub fn x(&self, tasks: f64) -> f64 {
        let span = (self.tasks.1 / self.tasks.0).ln();
        self.left + (tasks / self.tasks.0).ln() / span * PANEL.0
    }

    pub fn y(&self, value: f64) -> f64 {
        let span = (self.values.1 / self.values.0).ln();
        let share = (value / self.values.0).ln() / span;
        self.bottom() - share.clamp(0.0, 1.0) * PANEL.1
    }

    pub fn place(&self, tasks: u32, value: f64) -> (f64, f64) {
        (self.x(f64::from(tasks)), self.y(value))
    }
}

/// The ends of an axis: 1, 2 or 5 times a power of ten around the values, at least a factor of
/// three apart.
fn decades(least: f64, most: f64) -> (f64, f64) {
    let steps = || (-9..15).flat_map(|power| [1.0, 2.0, 5.0].map(|step| step * 10_f64.powi(power)));
    let below = steps()
        .take_while(|step| *step <= least * 0.95)
        .fold(None, |_, step| Some(step))
        .unwrap_or(least);
    let above = steps()
        .find(|step| *step >= (most * 1.05).max(below * 3.0))
        .unwrap_or(most);
    (below, above)
}

#[cfg(test)]
mod tests {
    use super::decades;

    #[test]
    fn axes_end_around_their_values() {
        let (below, above) = decades(3_588.0, 295_287.0);
        assert!((below - 2_000.0).abs() < 1e-6 && (above - 500_000.0).abs() < 1e-6);
        let (below, above) = decades(100.0, 100.0);
        assert!(below < 100.0 && above > 100.0);
    }
}
