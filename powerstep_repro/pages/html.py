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
_BADGES = {"reproduced": "yes", "not reproduced": "no"}
_BADGES |= dict.fromkeys(("inconclusive", "not run", "another model", "no verdict"), "open")


def html(markdown: str, folder: Path) -> str:
    """Return the page of a report.

    Args:
        markdown: the report as Markdown.
        folder: where the pictures that it names lie.
    """
    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(markdown)

    def inlined(found: re.Match) -> str:
        data = base64.b64encode((folder / found[1]).read_bytes()).decode("ascii")
        return f'<img src="data:image/png;base64,{data}"'

    body = re.sub(r'<img src="([^"]+)"', inlined, body)
    body = body.replace("<table>", '<div class="box" tabindex="0"><table>')
    body = body.replace("</table>", "</table></div>")
    for text, kind in _BADGES.items():
        body = body.replace(f"<strong>{text}</strong>", f'<strong class="{kind}">{text}</strong>')
    links = []
    for number, text in enumerate(re.findall(r"<h2>(.*?)</h2>", body), start=1):
        body = body.replace(f"<h2>{text}</h2>", f'<h2 id="section-{number}">{text}</h2>', 1)
        links.append(f'<a href="#section-{number}">{text}</a>')
    body = body.replace("</h1>", f"</h1>\n<nav>{''.join(links)}</nav>", 1)
    title = re.search(r"<h1>(.*?)</h1>", body)[1]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{title}</title>\n<style>{_STYLE}</style>\n"
        f"</head>\n<body>\n{body}</body>\n</html>\n"
    )
