"""Words of a model, a person or a file name as a tooltip, which would take what looks like HTML for HTML. Pure."""

from html import escape


def plain_tooltip(text: str) -> str:
    """`text` so that a tooltip shows it letter by letter."""
    if "<" not in text:
        return text
    return f"<qt>{escape(text, quote=False)}</qt>".replace("\n", "<br>")
