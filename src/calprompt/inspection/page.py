"""The findings of an inspection as one HTML page that needs no other file, with thumbnails."""

from __future__ import annotations

import base64
import io
from contextlib import suppress
from html import escape

from PIL import Image

from calprompt.errors import ImageError
from calprompt.inspection.inspect import COPY, PROBLEMS, TEST_COPY, TWO, TWO_CLASSES, Finding, Inspection, counted
from calprompt.text import plural

THUMBNAIL = 128  # pixels of the long side
MOST_SHOWN = 200  # findings of a problem on the page; the CSV has all
STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8882; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; border-bottom: 1px solid var(--line); }
nav a { margin-right: 1rem; } p.fine, figcaption { font-size: .85rem; }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(15rem, 1fr)); gap: 1rem; padding: 0; }
figure { margin: 0; padding: .6rem; border: 1px solid var(--line); border-radius: .4rem; }
figure div { display: flex; gap: .4rem; min-height: 6rem; align-items: center; }
img { max-width: 48%; height: 7rem; object-fit: contain; background: var(--soft); }
figcaption { overflow-wrap: anywhere; margin-top: .4rem; } figcaption span { display: block; }
table { border-collapse: collapse; } td, th { text-align: left; padding: .2rem .8rem .2rem 0; }
td.n { text-align: right; font-variant-numeric: tabular-nums; }
"""


def render(inspection: Inspection) -> str:
    counts = counted(inspection.findings)
    links = " ".join(
        f'<a href="#{_id(problem)}">{escape(PROBLEMS[problem].title)} ({n})</a>' for problem, n in counts.items()
    )
    words = " ".join(escape(line) for line in inspection.sentences)
    classes = "".join(f"<tr><td>{escape(name)}</td><td class=n>{n}</td></tr>" for name, n in inspection.classes.items())
    parts = [_section(inspection, problem) for problem in counts]
    title = f"What may be wrong with {escape(inspection.name)}"
    return (
        f'<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>\n'
        f"<body><main><h1>{title}</h1><p>{words}</p><nav>{links}</nav>\n{''.join(parts)}"
        f"<h2>Classes</h2><table><thead><tr><th>class</th><th>images</th></tr></thead>"
        f"<tbody>{classes}</tbody></table></main></body>\n</html>\n"
    )


def _section(inspection: Inspection, problem: str) -> str:
    own = [each for each in inspection.findings if each.problem == problem]
    more = f"<p class=fine>The first {MOST_SHOWN} of {len(own)}.</p>" if len(own) > MOST_SHOWN else ""
    figures = "".join(_figure(inspection, each) for each in own[:MOST_SHOWN])
    return (
        f'<section id="{_id(problem)}"><h2>{escape(PROBLEMS[problem].title)}</h2>'
        f"<p class=fine>{plural(len(own), 'finding')}, the surest first. "
        f"What to do: {escape(_advice(own[0]))}.</p>{more}"
        f'<div class="grid">{figures}</div></section>\n'
    )


def _figure(inspection: Inspection, finding: Finding) -> str:
    files = [finding.file] if finding.file else []
    if finding.problem in (COPY, TWO_CLASSES, TEST_COPY):
        files.append(finding.looks_like.rsplit(" (", 1)[0] if finding.problem == TWO_CLASSES else finding.looks_like)
    elif finding.problem == TWO:
        files = [part.rsplit(" and ", 1)[0] for part in finding.looks_like.split(" | ")]
    pictures = "".join(_thumbnail(inspection, name) for name in files)
    like = f"<span>{_like(finding)}</span>" if finding.looks_like else ""
    name = f"<span>{escape(finding.file)}</span>" if finding.file else ""
    why = finding.suggestion.split(";")[0] if finding.problem == "unreadable" else ""
    return (
        f"<figure><div>{pictures}</div><figcaption><strong>{escape(finding.label)}</strong>{name}{like}"
        f"<span>{escape(why) or f'score {finding.score:.2f}'}</span></figcaption></figure>"
    )


def _like(finding: Finding) -> str:
    words = {"mislabelled": "looks like ", "copy": "same as ", "classes alike": "and ", "class of two": "parts: "}
    return escape(f"{words.get(finding.problem, '')}{finding.looks_like}")


def _thumbnail(inspection: Inspection, name: str) -> str:
    source = inspection.sources.get(name)
    if source is None:
        return ""
    with suppress(ImageError):
        image: Image.Image = source()
        image.thumbnail((THUMBNAIL, THUMBNAIL))
        data = io.BytesIO()
        image.save(data, "JPEG", quality=80)
        return f'<img alt="{escape(name)}" src="data:image/jpeg;base64,{base64.b64encode(data.getvalue()).decode()}">'
    return ""


def _advice(finding: Finding) -> str:
    return finding.suggestion.split("; ", 1)[1] if finding.problem == "unreadable" else finding.suggestion


def _id(problem: str) -> str:
    return problem.replace(" ", "-").lower()
