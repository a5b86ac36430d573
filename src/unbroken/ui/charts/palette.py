"""The colours of charts, in light and in dark.

A figure is made in the light ones; the page maps each to its dark counterpart by its very name (`DARK`). All of them can
be told apart with the common kinds of colour blindness, and nothing is said by colour alone: marks differ in shape, lines
in dashes, areas in hatching.
"""

from __future__ import annotations

SURFACE = "#ffffff"
TEXT = "#1f2328"
MUTED = "#59636e"
GRID = "#e1e4e8"
BLUE = "#0067a8"
ORANGE = "#b84a00"
GREEN = "#00735c"
VIOLET = "#7b3f9d"
LOST = "#f3d9c6"
TINTS = ("#cfe3f3", "#dcebf7", "#c1dbef", "#e6f0f9")
"""Of areas with text on them, one beside the other."""
INEXACT = "#f6dfc9"

DARK = {
    SURFACE: "#14181d",
    TEXT: "#e6eaef",
    MUTED: "#a3adb8",
    GRID: "#2d343c",
    BLUE: "#6cb6ff",
    ORANGE: "#ff9b57",
    GREEN: "#4fd1b0",
    VIOLET: "#cf9df2",
    LOST: "#452b1c",
    TINTS[0]: "#1d3a54",
    TINTS[1]: "#24445f",
    TINTS[2]: "#183048",
    TINTS[3]: "#2b4d6a",
    INEXACT: "#5a3a22",
}
"""Light -> dark."""
