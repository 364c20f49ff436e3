//! Samples as pixels. This module knows neither arrays nor files.

use super::PIXEL;

/// Percentiles of the samples of a band that are shown as the ends of the colors: a few extreme
/// values must not hide the others.
const SHOWN: [f64; 2] = [0.02, 0.98];

/// How samples become colors.
#[derive(Clone, Debug, PartialEq)]
pub enum ColorRule {
    /// A value has a color of viridis.
    Map,
    /// Three bands are the red, green and blue of a pixel, from 0 to 255; a fourth one is its
    /// opacity, if so.
    Rgb {
        /// Whether the fourth band is the opacity.
        has_opacity: bool,
    },
    /// Each band shines in its color, as 0xRRGGBB; the light of all is added.
    Blend(Vec<u32>),
}

impl ColorRule {
    /// Returns the number of bands that are shown.
    pub fn bands(&self) -> usize {
        match self {
            ColorRule::Map => 1,
            ColorRule::Rgb { has_opacity } => 3 + usize::from(*has_opacity),
            ColorRule::Blend(colors) => colors.len(),
        }
    }
}

/// Returns the pixels, four bytes each, of samples that are sorted by band; NaN is missing. A pixel
/// is transparent if all its samples are missing.
pub fn paint(rule: &ColorRule, samples: &[f64], pixels: usize) -> Vec<u8> {
    let mut painted = vec![0; pixels * PIXEL];
    let bands: Vec<&[f64]> = samples.chunks(pixels.max(1)).collect();
    let ranges: Vec<[f64; 2]> = match rule {
        ColorRule::Rgb { .. } => vec![[0.0, 255.0]; bands.len()],
        _ => bands.iter().map(|band| shown_range(band)).collect(),
    };
    for (number, pixel) in painted.chunks_mut(PIXEL).enumerate() {
        let of_pixel = bands.iter().zip(&ranges);
        let levels = of_pixel.map(|(band, range)| level(band[number], *range));
        let Some(color) = color(rule, levels) else {
            continue;
        };
        pixel.copy_from_slice(&color);
    }
    painted
}

/// Returns the color of a pixel from its samples, each between 0 and 1 or missing; `None` if all
/// are.
fn color(rule: &ColorRule, levels: impl Iterator<Item = Option<f64>>) -> Option<[u8; PIXEL]> {
    let levels: Vec<Option<f64>> = levels.collect();
    if levels.iter().all(Option::is_none) {
        return None;
    }
    let level = |number: usize| levels.get(number).copied().flatten().unwrap_or(0.0);
    Some(match rule {
        ColorRule::Map => {
            // 256 colors of the same width, as matplotlib has them
            let number = (level(0) * 256.0).min(255.0) as usize;
            let color = colorous::VIRIDIS.eval_rational(number, 256);
            [color.r, color.g, color.b, 255]
        }
        ColorRule::Rgb { has_opacity } => {
            let opacity = if *has_opacity { byte(level(3)) } else { 255 };
            [byte(level(0)), byte(level(1)), byte(level(2)), opacity]
        }
        ColorRule::Blend(colors) => {
            let mut light = [0.0; 3];
            for (number, color) in colors.iter().enumerate() {
                let [_, parts @ ..] = color.to_be_bytes();
                for (sum, part) in light.iter_mut().zip(parts) {
                    *sum += level(number) * f64::from(part) / 255.0;
                }
            }
            let [red, green, blue] = light.map(byte);
            [red, green, blue, 255]
        }
    })
}

/// Returns a level between 0 and 1 as a byte.
fn byte(level: f64) -> u8 {
    (level.min(1.0) * 255.0).round() as u8
}

/// Returns where a sample lies in a range, between 0 and 1; `None` if it is missing.
fn level(sample: f64, [low, high]: [f64; 2]) -> Option<f64> {
    if sample.is_nan() {
        None
    } else if sample <= low {
        Some(0.0)
    } else if sample >= high {
        Some(1.0)
    } else {
        // the difference of two floats may exceed all floats, not the difference of their halves
        Some((sample / 2.0 - low / 2.0) / (high / 2.0 - low / 2.0))
    }
}

/// Returns the percentiles [`SHOWN`] of the finite samples, interpolated as NumPy does; zeros if
/// there are no such samples.
fn shown_range(samples: &[f64]) -> [f64; 2] {
    let mut finite: Vec<f64> = samples.iter().copied().filter(|x| x.is_finite()).collect();
    finite.sort_unstable_by(f64::total_cmp);
    SHOWN.map(|part| {
        let rank = part * finite.len().saturating_sub(1) as f64;
        let below = finite.get(rank.floor() as usize).copied().unwrap_or(0.0);
        let above = finite.get(rank.ceil() as usize).copied().unwrap_or(below);
        let weight = rank.fract();
        below * (1.0 - weight) + above * weight
    })
}
