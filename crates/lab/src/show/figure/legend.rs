//! The legend: measured and virtual curves with their ideals, then what was published.

use super::{Anchor, Curve, Figure, INK, LEFTS, Sort, Svg, line_of_ideal, look};

const ROW: f64 = 18.0;
/// The head of the published curves.
const PUBLISHED: &str = "published, hollow before the authors' change and filled after it:";

/// A line of the legend.
enum Entry<'a> {
    Curve(&'a Curve),
    Ideal(Sort),
}

/// The height of the whole legend.
#[expect(clippy::cast_precision_loss, reason = "a legend is short")]
pub fn height(figure: &Figure) -> f64 {
    let rows = |entries: usize| entries.div_ceil(2);
    let of_published = match published(figure).len() {
        0 => 0,
        curves => 1 + rows(curves),
    };
    ROW * ((rows(own(figure).len()) + of_published) as f64 + 0.4)
}

/// Draws it from `top` downwards, in two columns.
pub fn draw(svg: &mut Svg, figure: &Figure, top: f64) {
    let own = own(figure);
    let mut top = draw_entries(svg, &own, top);
    let published = published(figure);
    if !published.is_empty() {
        let at = (LEFTS[0] - 56.0, top);
        svg.text(at, PUBLISHED, (11.0, INK), Anchor::Start);
        top += ROW;
        draw_entries(svg, &published, top);
    }
}

/// Draws entries and returns where the next ones begin.
fn draw_entries(svg: &mut Svg, entries: &[Entry<'_>], top: f64) -> f64 {
    let mut top = top;
    for row in entries.chunks(2) {
        for (entry, left) in row.iter().zip(LEFTS) {
            draw_entry(svg, entry, (left - 56.0, top));
        }
        top += ROW;
    }
    top
}

fn draw_entry(svg: &mut Svg, entry: &Entry<'_>, (x, y): (f64, f64)) {
    let (from, to) = ((x, y - 3.5), (x + 34.0, y - 3.5));
    let words = match entry {
        Entry::Curve(curve) => {
            let (stroke, spot) = look(curve);
            if let Some(stroke) = stroke {
                svg.line(from, to, stroke);
            }
            svg.mark((x + 17.0, y - 3.5), spot);
            match stroke {
                Some(_) => format!("{} ({})", curve.name, curve.sort.name()),
                None => curve.name.clone(),
            }
        }
        Entry::Ideal(sort) => {
            line_of_ideal(svg, *sort, from, to);
            format!("ideal ({})", sort.name())
        }
    };
    svg.text((x + 42.0, y), &words, (11.0, INK), Anchor::Start);
}

/// The curves of this project, one for each name and sort, each sort with its ideal.
fn own(figure: &Figure) -> Vec<Entry<'_>> {
    let mut entries = Vec::new();
    for sort in [Sort::Measured, Sort::Virtual] {
        let mut names = Vec::new();
        for curve in figure.curves.iter().filter(|curve| curve.sort == sort) {
            if !names.contains(&&curve.name) {
                names.push(&curve.name);
                entries.push(Entry::Curve(curve));
            }
        }
        let has_ideal = figure.best(sort).is_some();
        entries.extend(has_ideal.then_some(Entry::Ideal(sort)));
    }
    entries
}

/// The published curves.
fn published(figure: &Figure) -> Vec<Entry<'_>> {
    let curves = figure.curves.iter();
    let published = curves.filter(|curve| curve.sort.is_published());
    published.map(Entry::Curve).collect()
}
