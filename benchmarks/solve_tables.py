"""Tables of the solvers' races from the stored results, for performance_page.py."""

from typing import Any

METHODS = ("gdnp", "gd", "agd", "bngd", "lbfgs")


def tables(stored: dict[str, Any]) -> str:
    """Races, cost of a step and memory, in Markdown."""
    return "\n\n".join(
        "\n".join(rows) for rows in (_races(stored["race"]), _costs(stored["cost"]), _memory(stored["memory_mib"]))
    )


def _races(races: dict[str, Any]) -> list[str]:
    rows = ["| to a gap of 1e-6 | GDNP | GD | AGD | BN-GD | L-BFGS | scikit-learn | SGD |", "|---" * 8 + "|"]
    for race, kinds in races.items():
        for kind, by_method in kinds.items():
            theirs = by_method["LinearRegression" if kind == "least_squares" else "LogisticRegression"]
            cells = [_finish(by_method.get(method)) for method in METHODS]
            cells += [_finish(theirs), _finish(by_method.get("SGDClassifier"))]
            rows.append(f"| {kind.replace('_', ' ')}, {race} | {' | '.join(cells)} |")
    return rows


def _finish(row: dict[str, Any] | None) -> str:
    if row is None:
        return "-"
    if row["iterations"] is None:
        return f"at {row['gap']:.0e}"
    return f"{row['iterations']}, {row['seconds']:.2g} s" if "seconds" in row else str(row["iterations"])


def _costs(costs: dict[str, Any]) -> list[str]:
    rows = [
        "| one step | X w and X^T r | halfspace | least squares | Z w | Z^T, 2 columns | evaluation | evaluations |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for size, cost in costs.items():
        parts = [f"{cost[part]:.1f} ms" if part in cost else "-" for part in ("forward_ms", "backward_ms", "look_ms")]
        looks = f"{cost['looks_per_step']:.1f}" if "looks_per_step" in cost else "-"
        ratios = f"{cost['halfspace_ratio']:.2f} | {cost['least_squares_ratio']:.2g}"
        rows.append(f"| {size} | {cost['products_ms']:.0f} ms | {ratios} | {' | '.join(parts)} | {looks} |")
    return rows


def _memory(sizes: dict[str, Any]) -> list[str]:
    names = list(next(iter(sizes.values())))
    rows = [f"| MiB beside the data | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for size, by_name in sizes.items():
        rows.append(f"| {size} | {' | '.join(f'{by_name[name]:.0f}' for name in names)} |")
    return rows
