"""Cells and tables in Markdown, for report.py and report_queues.py."""

DASH = "–"


def table(headings, rows):
    lines = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def number(value, digits=0):
    if value is None:
        return DASH
    return f"{value:,.{digits}f}"


def ratio(value, reference, digits=2):
    """`value` and, beside it, what part of `reference` it is."""
    if value is None:
        return DASH
    if not reference:
        return number(value)
    return f"{number(value)} ({value / reference:.{digits}f})"


def get(found, *path):
    """A figure, or None where the variant was not measured or failed."""
    for key in path:
        if not isinstance(found, dict) or key not in found:
            return None
        found = found[key]
    return found
