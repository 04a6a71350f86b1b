//! Figures of curves over a number of tasks: two panels, the rate of each task and the rate of all
//! together, both axes logarithmic.
//!
//! They are readable in black and white: settings differ by dash and mark, measured points are
//! filled, virtual points are hollow, published points are small and without a line (hollow before
//! the authors' change, filled after it, one shape for each curve), and the ideal of each kind of
//! evidence is a thin line, for virtual points a hollow one.

mod frame;
mod legend;

use frame::Frame;

use super::svg::{Anchor, GROUND, Mark, Spot, Stroke, Svg};

const WIDTH: f64 = 860.0;
const PANEL: (f64, f64) = (330.0, 250.0);
/// The lines of notes: where the first one is, how far apart they are, and their length in
/// characters.
const NOTES: f64 = 42.0;
const NOTE_LINE: f64 = 14.0;
const NOTE_LENGTH: usize = 140;
const LEFTS: [f64; 2] = [74.0, 496.0];
const INK: &str = "#222222";
const PALE: &str = "#767676";
const GRID: Stroke = Stroke {
    colour: "#e4e4e4",
    width: 0.8,
    dash: "",
};
const AXIS: Stroke = Stroke {
    colour: "#222222",
    width: 1.0,
    dash: "",
};
const IDEAL: Stroke = Stroke {
    colour: "#9a9a9a",
    width: 0.8,
    dash: "",
};
const PROCESSORS: Stroke = Stroke {
    colour: "#9a9a9a",
    width: 0.8,
    dash: "2 3",
};
/// Colours that remain distinct for colour-blind readers.
const COLOURS: [&str; 7] = [
    "#999999", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#b8860b",
];
const INSIDE: Stroke = Stroke {
    colour: GROUND,
    width: 1.4,
    dash: "",
};
const MARKS: [Mark; 5] = [
    Mark::Square,
    Mark::Triangle,
    Mark::Circle,
    Mark::Diamond,
    Mark::Cross,
];
const DASHES: [&str; 5] = ["1.5 3", "7 4", "", "9 3 2 3", "3 3"];
/// The shapes of published curves, all of which can be hollow.
const PUBLISHED: [Mark; 6] = [
    Mark::Square,
    Mark::Triangle,
    Mark::Circle,
    Mark::Diamond,
    Mark::Pennant,
    Mark::Hourglass,
];
/// The size of published points.
const SMALL: f64 = 0.7;

/// The origin of a curve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    /// Measured by the clock.
    Measured,
    /// On virtual cores.
    Virtual,
    /// Published by others, before their change.
    PublishedBefore,
    /// Published by others, after their change.
    PublishedAfter,
}

impl Sort {
    fn is_published(self) -> bool {
        matches!(self, Self::PublishedBefore | Self::PublishedAfter)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Virtual => "virtual",
            Self::PublishedBefore | Self::PublishedAfter => "published",
        }
    }
}

/// A curve of the rates of all tasks together.
#[derive(Clone, Debug)]
pub struct Curve {
    /// Its name in the legend.
    pub name: String,
    /// The number that selects dash, mark and colour, for published curves the mark; equal numbers
    /// look the same.
    pub look: usize,
    /// The origin of its points.
    pub sort: Sort,
    /// Its points, by increasing number of tasks.
    pub points: Vec<Rate>,
}

/// A rate at a number of tasks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Number of tasks.
    pub tasks: u32,
    /// Operations a second, all tasks together.
    pub rate: f64,
    /// The smallest and the largest measured rate.
    pub range: Option<(f64, f64)>,
}

/// A figure.
#[derive(Clone, Debug)]
pub struct Figure {
    /// The title.
    pub title: String,
    /// The texts under the title, each on a line of its own or, if it is long, on several.
    pub notes: Vec<String>,
    /// The unit of rates, such as `operations/s`; relative to one task if `is_relative`.
    pub unit: String,
    /// Whether rates are multiples of one task's rate.
    pub is_relative: bool,
    /// Processors of the machine, if a curve was measured there.
    pub processors: Option<u32>,
    /// In the order of the legend; curves with the same name have one entry.
    pub curves: Vec<Curve>,
}

impl Figure {
    /// The notes, cut into lines that lie within the figure.
    fn note_lines(&self) -> Vec<String> {
        self.notes.iter().flat_map(|note| lines(note)).collect()
    }

    /// Where the panels begin, below the notes.
    #[expect(clippy::cast_precision_loss, reason = "there are few notes")]
    fn top(&self) -> f64 {
        NOTES + NOTE_LINE * (self.note_lines().len().max(1) - 1) as f64 + 36.0
    }

    /// The best rate of a task in the first points of a sort of curves, which the ideal keeps.
    fn best(&self, sort: Sort) -> Option<f64> {
        let curves = self.curves.iter().filter(|curve| curve.sort == sort);
        let firsts = curves.filter_map(|curve| curve.points.first());
        let rates = firsts.map(|point| point.rate / f64::from(point.tasks));
        rates.filter(|rate| *rate > 0.0).reduce(f64::max)
    }

    /// The ideals, each with the sort of its curves. A machine's tasks do not measure another's.
    fn ideals(&self) -> impl Iterator<Item = (Sort, f64)> {
        // Where both are at the same place, the hollow line is behind the other.
        let sorts = [Sort::Virtual, Sort::Measured].into_iter();
        sorts.filter_map(|sort| Some((sort, self.best(sort)?)))
    }
}

/// Cuts a text at blanks.
fn lines(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + word.chars().count() < NOTE_LENGTH => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// One of the two panels.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Panel {
    PerTask,
    Total,
}

impl Panel {
    fn value(self, tasks: u32, rate: f64) -> f64 {
        match self {
            Self::PerTask => rate / f64::from(tasks),
            Self::Total => rate,
        }
    }
}

/// Draws the figure as SVG.
#[must_use]
pub fn draw(figure: &Figure) -> String {
    let legend = figure.top() + PANEL.1 + 58.0;
    let mut svg = Svg::new(WIDTH, legend + legend::height(figure));
    let left = LEFTS[0] - 56.0;
    svg.text((left, 24.0), &figure.title, (16.0, INK), Anchor::Start);
    let mut y = NOTES;
    for line in figure.note_lines() {
        svg.text((left, y), &line, (11.0, PALE), Anchor::Start);
        y += NOTE_LINE;
    }
    for (panel, left) in [Panel::PerTask, Panel::Total].into_iter().zip(LEFTS) {
        draw_panel(&mut svg, figure, panel, left);
    }
    legend::draw(&mut svg, figure, legend);
    svg.finish(&figure.title)
}

fn draw_panel(svg: &mut Svg, figure: &Figure, panel: Panel, left: f64) {
    let Some(frame) = Frame::of(figure, panel, left) else {
        return;
    };
    draw_axes(svg, figure, panel, &frame);
    for (sort, best) in figure.ideals() {
        draw_ideal(svg, sort, best, panel, &frame);
    }
    for curve in &figure.curves {
        draw_curve(svg, curve, panel, &frame);
    }
}

fn draw_axes(svg: &mut Svg, figure: &Figure, panel: Panel, frame: &Frame) {
    draw_value_grid(svg, frame);
    draw_task_grid(svg, frame);
    draw_processors(svg, figure, panel, frame);
    let (left, top, bottom, right) = (frame.left, frame.top, frame.bottom(), frame.right());
    svg.line((left, top), (left, bottom), AXIS);
    svg.line((left, bottom), (right, bottom), AXIS);
    let of = match panel {
        Panel::PerTask => "each task",
        Panel::Total => "all tasks",
    };
    let unit = if figure.is_relative {
        "relative to one task alone"
    } else {
        &*figure.unit
    };
    svg.text(
        (left, top - 7.0),
        &format!("{of}: {unit}"),
        (11.5, INK),
        Anchor::Start,
    );
    svg.text((right, bottom + 30.0), "tasks", (11.5, INK), Anchor::End);
}

/// Draws a horizontal line at 1, 2 and 5 times every power of ten, and labels it if there is room.
fn draw_value_grid(svg: &mut Svg, frame: &Frame) {
    let (left, right) = (frame.left, frame.right());
    for power in -9..15 {
        let decade = 10_f64.powi(power);
        for step in [1.0, 2.0, 5.0] {
            let value = decade * step;
            if value < frame.values.0 * 0.999 || value > frame.values.1 * 1.001 {
                continue;
            }
            let y = frame.y(value);
            svg.line((left, y), (right, y), GRID);
            let is_wide = frame.values.1 / frame.values.0 > 200.0;
            if (step - 1.0).abs() < 0.1 || !is_wide {
                svg.text(
                    (left - 7.0, y + 3.5),
                    &short(value),
                    (10.5, INK),
                    Anchor::End,
                );
            }
        }
    }
}

/// Draws a labelled vertical line at every power of two of tasks.
fn draw_task_grid(svg: &mut Svg, frame: &Frame) {
    let (top, bottom) = (frame.top, frame.bottom());
    let mut tasks = 1_u32;
    while f64::from(tasks) <= frame.tasks.1 {
        let x = frame.x(f64::from(tasks));
        svg.line((x, top), (x, bottom), GRID);
        svg.text(
            (x, bottom + 15.0),
            &tasks.to_string(),
            (10.5, INK),
            Anchor::Middle,
        );
        tasks *= 2;
    }
}

/// Marks the number of processors if it is inside the frame.
fn draw_processors(svg: &mut Svg, figure: &Figure, panel: Panel, frame: &Frame) {
    if let Some(processors) = figure.processors.map(f64::from)
        && processors > 1.0
        && processors < frame.tasks.1
    {
        let x = frame.x(processors);
        svg.line((x, frame.top), (x, frame.bottom()), PROCESSORS);
        let words = format!("{processors:.0} processors");
        // Where few curves come: these fall, those rise.
        let y = match panel {
            Panel::PerTask => frame.bottom() - 5.0,
            Panel::Total => frame.top + 11.0,
        };
        svg.text((x + 4.0, y), &words, (9.5, PALE), Anchor::Start);
    }
}

/// Draws an ideal, at the best rate of one task: every further task is as fast.
fn draw_ideal(svg: &mut Svg, sort: Sort, best: f64, panel: Panel, frame: &Frame) {
    let (from, to) = match panel {
        Panel::PerTask => frame.tasks,
        // Only the part inside the frame: clamped to the border, the line would have a wrong slope.
        Panel::Total => (
            frame.tasks.0.max(frame.values.0 / best),
            frame.tasks.1.min(frame.values.1 / best),
        ),
    };
    let at = |tasks: f64| match panel {
        Panel::PerTask => (frame.x(tasks), frame.y(best)),
        Panel::Total => (frame.x(tasks), frame.y(best * tasks)),
    };
    if from < to {
        line_of_ideal(svg, sort, at(from), at(to));
    }
}

/// A thin line; one for virtual points is hollow as they are.
fn line_of_ideal(svg: &mut Svg, sort: Sort, from: (f64, f64), to: (f64, f64)) {
    if sort == Sort::Virtual {
        let width = INSIDE.width + 2.0 * IDEAL.width;
        svg.line(from, to, Stroke { width, ..IDEAL });
        svg.line(from, to, INSIDE);
    } else {
        svg.line(from, to, IDEAL);
    }
}

/// The line of a curve, which published ones have not, and its marks.
fn look(curve: &Curve) -> (Option<Stroke>, Spot) {
    let (index, marks) = match curve.sort {
        Sort::Measured | Sort::Virtual => (curve.look, &MARKS[..]),
        Sort::PublishedBefore => (0, &PUBLISHED[..]),
        Sort::PublishedAfter => (1, &PUBLISHED[..]),
    };
    let is_published = curve.sort.is_published();
    let spot = Spot {
        mark: marks[curve.look % marks.len()],
        colour: COLOURS[index % COLOURS.len()],
        is_hollow: matches!(curve.sort, Sort::Virtual | Sort::PublishedBefore),
        scale: if is_published { SMALL } else { 1.0 },
    };
    let stroke = Stroke {
        colour: spot.colour,
        width: 1.8,
        dash: DASHES[curve.look % DASHES.len()],
    };
    ((!is_published).then_some(stroke), spot)
}

fn draw_curve(svg: &mut Svg, curve: &Curve, panel: Panel, frame: &Frame) {
    let (stroke, spot) = look(curve);
    let place = |tasks, rate| frame.place(tasks, panel.value(tasks, rate));
    let places: Vec<(f64, f64)> = curve
        .points
        .iter()
        .map(|point| place(point.tasks, point.rate))
        .collect();
    if let Some(stroke) = stroke {
        svg.path(&places, stroke);
    }
    for (at, point) in places.into_iter().zip(&curve.points) {
        if let Some(((least, most), stroke)) = point.range.zip(stroke) {
            let thin = Stroke {
                width: 1.0,
                dash: "",
                ..stroke
            };
            let (from, to) = (place(point.tasks, least), place(point.tasks, most));
            svg.line(from, to, thin);
        }
        svg.mark(at, spot);
    }
}

/// A number as an axis label.
fn short(value: f64) -> String {
    let (scaled, unit) = match value {
        value if value >= 1e9 => (value / 1e9, " G"),
        value if value >= 1e6 => (value / 1e6, " M"),
        value if value >= 1e3 => (value / 1e3, " k"),
        value => (value, ""),
    };
    if scaled >= 1.0 {
        format!("{scaled:.0}{unit}")
    } else {
        format!("{scaled}")
    }
}

#[cfg(test)]
mod tests {
    use super::{
        Curve, Figure, Frame, IDEAL, LEFTS, NOTE_LENGTH, Panel, Rate, Sort, draw, lines, short,
    };

    fn curve(name: &str, look: usize, sort: Sort, rates: &[(u32, f64)]) -> Curve {
        let points = rates
            .iter()
            .map(|&(tasks, rate)| Rate {
                tasks,
                rate,
                range: None,
            })
            .collect();
        Curve {
            name: name.to_owned(),
            look,
            sort,
            points,
        }
    }

    #[test]
    fn numbers_at_an_axis_are_short() {
        assert_eq!(short(2e6), "2 M");
        assert_eq!(short(500.0), "500");
        assert_eq!(short(0.05), "0.05");
    }

    #[test]
    fn sorts_are_told_apart_without_colour() {
        let figure = Figure {
            title: "fallocate2".to_owned(),
            notes: vec!["on a machine".to_owned()],
            unit: "operations/s".to_owned(),
            is_relative: false,
            processors: Some(2),
            curves: vec![
                curve(
                    "base",
                    0,
                    Sort::Measured,
                    &[(1, 1e5), (2, 1.1e5), (64, 0.9e5)],
                ),
                curve("full", 2, Sort::Virtual, &[(1, 1e5), (2, 2e5), (64, 6e6)]),
                curve("v1", 0, Sort::PublishedAfter, &[(1, 2e5), (64, 1e5)]),
                curve("v2", 1, Sort::PublishedAfter, &[(1, 2e5), (64, 2e5)]),
            ],
        };
        let text = draw(&figure);
        assert_eq!(text, draw(&figure), "the same bytes every time");
        // Two panels and the legend: a line with dots for base, no line for the published points.
        assert_eq!(
            text.matches("<polyline").count(),
            4,
            "two curves in two panels"
        );
        assert_eq!(text.matches("base (measured)").count(), 1);
        assert_eq!(text.matches("full (virtual)").count(), 1);
        assert_eq!(text.matches(">v1</text>").count(), 1);
        let hollow = text
            .lines()
            .filter(|line| line.starts_with("<circle") && line.contains("#ffffff"));
        assert_eq!(hollow.count(), 2 * 3 + 1, "virtual points are hollow");
        let small = text
            .lines()
            .filter(|line| line.contains("stroke-width=\"1.2\""));
        let mut corners: Vec<usize> = small.map(|line| line.matches(',').count()).collect();
        corners.sort_unstable();
        let expected = [[3; 2 * 2 + 1], [4; 2 * 2 + 1]].concat();
        assert_eq!(corners, expected, "a shape for each published curve");
        assert_eq!(text.matches("ideal (measured)").count(), 1);
        assert_eq!(text.matches("ideal (virtual)").count(), 1);
    }

    #[test]
    fn repetitions_far_from_their_median_lie_in_the_frame() {
        let mut spread = curve("full", 2, Sort::Measured, &[(1, 1e5), (2, 1e5)]);
        spread.points[1].range = Some((1e4, 1e6));
        let figure = Figure {
            title: String::new(),
            notes: Vec::new(),
            unit: String::new(),
            is_relative: false,
            processors: None,
            curves: vec![spread],
        };
        let frame = Frame::of(&figure, Panel::Total, 0.0).unwrap();
        assert!(frame.values.0 <= 1e4 && frame.values.1 >= 1e6);
    }

    /// The values of an attribute of the lines of the ideal.
    fn ideals(text: &str, attribute: &str) -> Vec<f64> {
        let lines = text
            .lines()
            .filter(|line| line.contains(IDEAL.colour) && !line.contains("dasharray"));
        let values = lines.map(|line| {
            let (_, rest) = line.split_once(&format!("{attribute}=\"")).unwrap();
            rest.split('"').next().unwrap().parse().unwrap()
        });
        values.collect()
    }

    #[test]
    fn each_kind_of_evidence_has_the_ideal_of_its_own_machine() {
        let figure = Figure {
            title: String::new(),
            notes: Vec::new(),
            unit: String::new(),
            is_relative: false,
            processors: None,
            curves: vec![
                curve("base", 0, Sort::Measured, &[(1, 1e5), (2, 1.5e5)]),
                curve("full", 2, Sort::Measured, &[(1, 2e5), (2, 3e5)]),
                curve("full", 2, Sort::Virtual, &[(1, 8e5), (2, 9e5)]),
                curve("before", 0, Sort::PublishedBefore, &[(1, 9e6)]),
            ],
        };
        let found: Vec<_> = figure.ideals().collect();
        assert_eq!(found, [(Sort::Virtual, 8e5), (Sort::Measured, 2e5)]);
    }

    #[test]
    fn notes_are_cut_where_the_figure_ends() {
        let note = "word ".repeat(60);
        let cut = lines(note.trim_end());
        assert!(cut.iter().all(|line| line.len() <= NOTE_LENGTH));
        assert_eq!(cut.join(" "), note.trim_end());
        assert_eq!(cut.len(), 3);
    }

    #[test]
    fn the_ideal_is_cut_where_it_leaves_the_frame() {
        // From 8 tasks on: one task alone would be far below the frame of the total panel, 64 far
        // above.
        let figure = Figure {
            title: String::new(),
            notes: Vec::new(),
            unit: String::new(),
            is_relative: false,
            processors: None,
            curves: vec![curve("full", 2, Sort::Measured, &[(8, 800.0), (64, 900.0)])],
        };
        let text = draw(&figure);
        let [x1, y1, x2, y2] = ["x1", "y1", "x2", "y2"].map(|name| ideals(&text, name)[1]);
        let frame = Frame::of(&figure, Panel::Total, LEFTS[1]).unwrap();
        assert_eq!(frame.values, (500.0, 2000.0));
        // 100 a task: 5 tasks are at the bottom of the frame, 20 at the top.
        let corners = [frame.x(5.0), frame.y(500.0), frame.x(20.0), frame.y(2000.0)];
        for (found, expected) in [x1, y1, x2, y2].into_iter().zip(corners) {
            assert!((found - expected).abs() < 0.1, "{found} is not {expected}");
        }
    }

    #[test]
    fn nothing_to_draw_is_no_panic() {
        let figure = Figure {
            title: String::new(),
            notes: Vec::new(),
            unit: String::new(),
            is_relative: true,
            processors: None,
            curves: Vec::new(),
        };
        assert!(draw(&figure).starts_with("<svg"));
    }
}
