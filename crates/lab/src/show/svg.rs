//! Scalable vector graphics, as far as figures need them: lines, marks, text.
//!
//! Numbers have one digit after the decimal point, so that the same results give the same bytes.

use std::fmt::Write;

/// A drawing of a fixed size.
pub struct Svg {
    width: f64,
    height: f64,
    body: String,
}

/// The position of text relative to its point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

/// The style of a line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stroke {
    /// A colour in CSS notation.
    pub colour: &'static str,
    pub width: f64,
    /// Lengths of dashes and gaps; empty for a solid line.
    pub dash: &'static str,
}

/// The shape of a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    Circle,
    Square,
    Triangle,
    Diamond,
    Cross,
    Pennant,
    Hourglass,
}

/// The look of a point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spot {
    pub mark: Mark,
    /// A colour in CSS notation.
    pub colour: &'static str,
    /// Whether it is filled with the background colour; a cross never is.
    pub is_hollow: bool,
    /// 1 for the points of lines.
    pub scale: f64,
}

impl Svg {
    pub fn new(width: f64, height: f64) -> Self {
        Self {
            width,
            height,
            body: String::new(),
        }
    }

    fn put(&mut self, line: std::fmt::Arguments<'_>) {
        self.body.write_fmt(line).expect("a string has room");
        self.body.push('\n');
    }

    pub fn line(&mut self, from: (f64, f64), to: (f64, f64), stroke: Stroke) {
        let style = style(stroke);
        self.put(format_args!(
            r#"<line x1="{:.1}" y1="{:.1}" x2="{:.1}" y2="{:.1}" {style}/>"#,
            from.0, from.1, to.0, to.1
        ));
    }

    /// Adds a line through points.
    pub fn path(&mut self, points: &[(f64, f64)], stroke: Stroke) {
        let list: Vec<String> = points
            .iter()
            .map(|(x, y)| format!("{x:.1},{y:.1}"))
            .collect();
        let (list, style) = (list.join(" "), style(stroke));
        self.put(format_args!(
            r#"<polyline points="{list}" fill="none" stroke-linejoin="round" {style}/>"#
        ));
    }

    /// Adds text; `look` is the size in points and the colour.
    pub fn text(&mut self, at: (f64, f64), words: &str, look: (f64, &str), anchor: Anchor) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let (size, colour) = look;
        self.put(format_args!(
            r#"<text x="{:.1}" y="{:.1}" font-size="{size}" fill="{colour}" text-anchor="{anchor}">{}</text>"#,
            at.0,
            at.1,
            escaped(words)
        ));
    }

    /// Adds a mark at a point.
    pub fn mark(&mut self, at: (f64, f64), spot: Spot) {
        let corners: &[(f64, f64)] = match spot.mark {
            Mark::Circle => return self.circle(at, spot),
            Mark::Cross => return self.cross(at, spot),
            Mark::Square => &[(-3.2, -3.2), (3.2, -3.2), (3.2, 3.2), (-3.2, 3.2)],
            Mark::Triangle => &[(0.0, -4.4), (4.0, 2.9), (-4.0, 2.9)],
            Mark::Diamond => &[(0.0, -4.6), (4.0, 0.0), (0.0, 4.6), (-4.0, 0.0)],
            Mark::Pennant => &[(-3.2, -4.0), (4.2, 0.0), (-3.2, 4.0)],
            Mark::Hourglass => &[(-3.6, -4.2), (3.6, -4.2), (-3.6, 4.2), (3.6, 4.2)],
        };
        let (x, y) = at;
        let corners = corners.iter();
        let list = corners.map(|(right, down)| (x + right * spot.scale, y + down * spot.scale));
        let list: Vec<String> = list.map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let (list, look) = (list.join(" "), outline(spot));
        self.put(format_args!(r#"<polygon points="{list}" {look}/>"#));
    }

    fn circle(&mut self, (x, y): (f64, f64), spot: Spot) {
        let (radius, look) = (3.6 * spot.scale, outline(spot));
        self.put(format_args!(
            r#"<circle cx="{x:.1}" cy="{y:.1}" r="{radius:.1}" {look}/>"#
        ));
    }

    fn cross(&mut self, (x, y): (f64, f64), spot: Spot) {
        let half = 3.2 * spot.scale;
        let (x, y, side, colour) = (x - half, y - half, 2.0 * half, spot.colour);
        let path = format!("M{x:.1} {y:.1}l{side:.1} {side:.1}m0 -{side:.1}l-{side:.1} {side:.1}");
        self.put(format_args!(
            r#"<path d="{path}" stroke="{colour}" stroke-width="1.6"/>"#
        ));
    }

    /// Returns the whole file.
    pub fn finish(self, title: &str) -> String {
        let Self {
            width,
            height,
            body,
        } = self;
        let (title, families) = (
            escaped(title),
            "system-ui, 'Helvetica Neue', Arial, sans-serif",
        );
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" \
             width=\"{width:.0}\" height=\"{height:.0}\" font-family=\"{families}\" role=\"img\">\n\
             <title>{title}</title>\n\
             <rect width=\"100%\" height=\"100%\" fill=\"{GROUND}\"/>\n{body}</svg>\n"
        )
    }
}

/// The background colour.
pub const GROUND: &str = "#ffffff";

fn outline(spot: Spot) -> String {
    let colour = spot.colour;
    let fill = if spot.is_hollow { GROUND } else { colour };
    // Small marks have thinner lines, or hollow ones would look filled.
    let width = 1.4 * spot.scale.sqrt();
    format!(r#"fill="{fill}" stroke="{colour}" stroke-width="{width:.1}""#)
}

fn style(stroke: Stroke) -> String {
    let dash = match stroke.dash {
        "" => String::new(),
        dash => format!(r#" stroke-dasharray="{dash}""#),
    };
    format!(
        r#"stroke="{}" stroke-width="{:.1}"{dash}"#,
        stroke.colour, stroke.width
    )
}

fn escaped(words: &str) -> String {
    words
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::{Anchor, Mark, Spot, Stroke, Svg};

    #[test]
    fn a_drawing_is_well_formed_and_says_what_it_was_told() {
        let mut svg = Svg::new(100.0, 50.0);
        let stroke = Stroke {
            colour: "#123456",
            width: 1.5,
            dash: "4 2",
        };
        svg.line((0.0, 1.0), (2.25, 3.0), stroke);
        svg.path(&[(1.0, 2.0), (3.0, 4.0)], stroke);
        svg.text((5.0, 5.0), "a < b & c", (11.0, "#000"), Anchor::Middle);
        for mark in [
            Mark::Circle,
            Mark::Square,
            Mark::Triangle,
            Mark::Diamond,
            Mark::Cross,
            Mark::Pennant,
            Mark::Hourglass,
        ] {
            let spot = Spot {
                mark,
                colour: "#654321",
                is_hollow: true,
                scale: 0.7,
            };
            svg.mark((9.0, 9.0), spot);
        }
        let text = svg.finish("one \"title\"");
        assert!(
            text.contains(r##"<line x1="0.0" y1="1.0" x2="2.2" y2="3.0" stroke="#123456""##),
            "{text}"
        );
        assert!(text.contains(r#"stroke-dasharray="4 2""#));
        assert!(text.contains(">a &lt; b &amp; c</text>"));
        assert!(text.contains("<title>one &quot;title&quot;</title>"));
        // Every element closes itself or is closed.
        let opened = text.matches('<').count() - text.matches("</").count();
        let closed = text.matches("/>").count() + text.matches("</").count();
        assert_eq!(opened, closed, "{text}");
    }
}
