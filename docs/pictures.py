"""Draw the pictures of docs/concepts.md and docs/data.md into docs/images, from spaces, data and the evidence.

python docs/pictures.py
"""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

import raynas
from raynas import drawing, figures
from raynas.data.clutter import make_clutter
from raynas.data.config import ClutterConfig
from raynas.reports.sharing import sharing_figure

IMAGES = Path(__file__).parent / "images"

STEPS = (
    ("space", "choices of width,\ndepth, heads, ..."),
    ("supernet", "one set of weights,\ntrained by its subnets"),
    ("scores", "subnets with\ninherited weights"),
    ("search", "ask, score, tell,\nwithin the budget"),
    ("winner", "trained alone,\ntested, exported"),
)


def main() -> None:
    """Write every picture."""
    space = raynas.load_space("digits/vit")
    rng = np.random.default_rng(1)
    pictures = {
        "concepts_steps": steps(),
        "concepts_arch": figures.blocks(space.sample(rng), space),
        "concepts_sharing": sharing_figure(10),
        "data_clutter": clutter(),
    }
    for name, figure in pictures.items():
        with matplotlib.rc_context({**drawing.STYLE, "svg.hashsalt": name}):
            figure.savefig(IMAGES / f"{name}.svg", facecolor="white", metadata={"Date": None, "Creator": None})


def clutter() -> Figure:
    """Show the first images of clutter: a column for each class, and below the same with more and smaller things."""
    rows = []
    for config in (ClutterConfig(train=100), ClutterConfig(train=100, side=(12, 18), pieces=6, noise=60)):
        pixels = make_clutter(config, "train")[0][:20, 0].reshape(2, 10, *config.size)
        padded = np.pad(pixels, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=255)
        rows += [np.concatenate(list(row), axis=1) for row in padded]
    figure = Figure(figsize=(7.8, 3.15), layout="constrained")
    axes = figure.add_subplot()
    axes.imshow(np.concatenate(rows), cmap="gray", interpolation="nearest", vmin=0, vmax=255)
    axes.axis("off")
    return figure


@matplotlib.rc_context(drawing.STYLE)
def steps() -> Figure:
    """Draw the way from a space to a finished network."""
    figure = Figure(figsize=(9, 1.5), layout="constrained")
    axes = figure.add_subplot()
    axes.set(xlim=(-0.1, 2.2 * len(STEPS) - 0.3), ylim=(0, 1))
    axes.axis("off")
    for place, ((name, text), colour) in enumerate(zip(STEPS, drawing.PALETTE, strict=False)):
        left = 2.2 * place
        axes.add_patch(FancyBboxPatch((left, 0.1), 1.6, 0.8, boxstyle="round,pad=0.05", color=colour, alpha=0.2))
        axes.text(left + 0.8, 0.72, name, ha="center", va="center", weight="bold")
        axes.text(left + 0.8, 0.34, text, ha="center", va="center", fontsize=8)
        if place:
            arrow = {"arrowstyle": "->", "color": drawing.INK}
            axes.annotate("", (left - 0.08, 0.5), (left - 0.52, 0.5), arrowprops=arrow)
    return figure


if __name__ == "__main__":
    main()
