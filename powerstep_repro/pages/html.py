"""The report as one HTML file: pictures inlined, no script, no request, readable on a phone."""

import base64
import re
from pathlib import Path

from markdown_it import MarkdownIt

_STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 62rem; color: #222; background: #fff;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
  overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.2; }
h2 { font-size: 1.3rem; margin-top: 2.5rem; padding-top: .6rem; border-top: 2px solid #ddd; }
h3 { font-size: 1.05rem; margin-top: 1.8rem; }
img { display: block; max-width: 100%; height: auto; }
nav { display: flex; flex-wrap: wrap; gap: .3rem 1rem; font-size: .9rem; }
.box { overflow-x: auto; max-width: 100%; border: 1px solid #e2e2e2; border-radius: 4px; }
table { border-collapse: collapse; font-size: .84rem; line-height: 1.35; }
th, td { padding: .35rem .6rem; text-align: left; vertical-align: top; min-width: 5.5rem;
  overflow-wrap: normal; }
th { background: #f5f5f5; white-space: nowrap; }
tr + tr td { border-top: 1px solid #eee; }
code { font: .86em/1.4 ui-monospace, "DejaVu Sans Mono", monospace; background: #f5f5f5;
  padding: .1em .25em; border-radius: 3px; }
.yes, .no, .open { padding: .05em .4em; border-radius: 3px; color: #fff; white-space: nowrap; }
.yes { background: #00704a; } .no { background: #a3122a; } .open { background: #5f5f5f; }
"""
_VERDICTS = {
    "reproduced": "yes",
    "not reproduced": "no",
    "inconclusive": "open",
    "not run": "open",
    "another model": "open",
    "no verdict": "open",
}


def html(markdown: str, folder: Path) -> str:
    """Return the page of a report.

    Args:
        markdown: the report as Markdown.
        folder: where the pictures that it names lie.
    """
    renderer = MarkdownIt("commonmark", {"html": False}).enable("table")
    body = renderer.render(markdown)
    body = re.sub(r'<img src="([^"]+)"', lambda found: _inlined(found, folder), body)
    body = body.replace("<table>", '<div class="box" tabindex="0"><table>')
    body = body.replace("</table>", "</table></div>")
    body = re.sub(r"<strong>([a-z ]+)</strong>", _badge, body)
    headings: list[tuple[str, str]] = []
    body = re.sub(r"<h2>(.*?)</h2>", lambda found: _anchored(found, headings), body)
    links = "".join(f'<a href="#{anchor}">{text}</a>' for anchor, text in headings)
    title = re.search(r"<h1>(.*?)</h1>", body)
    body = body.replace("</h1>", f"</h1>\n<nav>{links}</nav>", 1)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{title.group(1) if title else 'Report'}</title>\n<style>{_STYLE}</style>\n"
        f"</head>\n<body>\n{body}</body>\n</html>\n"
    )


def _inlined(found: re.Match, folder: Path) -> str:
    data = base64.b64encode((folder / found.group(1)).read_bytes()).decode("ascii")
    return f'<img src="data:image/png;base64,{data}"'


def _badge(found: re.Match) -> str:
    text = found.group(1)
    return f'<strong class="{_VERDICTS[text]}">{text}</strong>' if text in _VERDICTS else found[0]


def _anchored(found: re.Match, headings: list[tuple[str, str]]) -> str:
    anchor = f"section-{len(headings) + 1}"
    headings.append((anchor, found.group(1)))
    return f'<h2 id="{anchor}">{found.group(1)}</h2>'
