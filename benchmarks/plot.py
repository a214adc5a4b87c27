"""A picture of a document of results."""

from collections.abc import Mapping


def draw(document: Mapping, path: str) -> bool:
    """Draws medians as bars, from minimum to maximum as lines.

    Returns:
        Whether it did: not if matplotlib is missing, or there is nothing to draw.
    """
    try:
        import matplotlib.figure
    except ModuleNotFoundError:
        return False
    drawn = {
        name: [
            (contender, one)
            for contender, one in comparison["contenders"].items()
            if one["median"] is not None
        ]
        for name, comparison in document["comparisons"].items()
    }
    drawn = {name: bars for name, bars in drawn.items() if bars}
    if not drawn:
        return False
    heights = [len(bars) + 1.5 for bars in drawn.values()]
    figure = matplotlib.figure.Figure((8, 0.4 * sum(heights)), layout="constrained")
    places = figure.subplots(
        len(drawn), squeeze=False, gridspec_kw={"height_ratios": heights}
    )
    for axes, (name, bars) in zip(places[:, 0], drawn.items(), strict=True):
        comparison = document["comparisons"][name]
        medians = [one["median"] for _, one in bars]
        below = [one["median"] - one["least"] for _, one in bars]
        above = [one["most"] - one["median"] for _, one in bars]
        axes.barh(
            [contender for contender, _ in bars],
            medians,
            xerr=[below, above],
            color=["#d9822b" if c == "dtrain" else "#7f9bb3" for c, _ in bars],
        )
        axes.invert_yaxis()
        axes.set_title(f"{name}: {comparison['title']}", fontsize=9, loc="left")
        axes.set_xlabel(comparison["unit"], fontsize=8)
        axes.tick_params(labelsize=8)
    figure.suptitle(f"dtrain {document['commit']}", fontsize=10)
    figure.savefig(path, dpi=110)
    return True
