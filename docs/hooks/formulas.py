"""Sets the formulas of a page: each ```math block, one line of TeX, becomes a picture that takes the text's colour."""

import re
from html import escape
from io import BytesIO
from typing import Any

from matplotlib.font_manager import FontProperties
from matplotlib.mathtext import math_to_image

_BLOCK = re.compile(r"^```math\n(.+?)\n```$", re.MULTILINE)
_SIZE = 10.0


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    return _BLOCK.sub(lambda found: f'<p class="formula">{_picture(found[1])}</p>', markdown)


def _picture(tex: str) -> str:
    drawn = BytesIO()
    math_to_image(
        f"${tex}$".replace(r"\frac", r"\dfrac"),
        drawn,
        format="svg",
        prop=FontProperties(size=_SIZE, math_fontfamily="stix"),
    )
    svg = drawn.getvalue().decode()
    width, height = (float(one) / _SIZE for one in re.search(r'width="(\S+)pt" height="(\S+)pt"', svg).groups())
    (view,) = re.findall(r'viewBox="[^"]+"', svg)
    # Everything but the glyphs is left out: the header, the metadata and the white ground.
    glyphs = svg[svg.index('<g id="text_1">') : svg.rindex("</g>\n</svg>")]
    glyphs = " ".join(re.sub(r"<!--.*?-->", "", glyphs, flags=re.DOTALL).split()).replace(' id="text_1"', "")
    style = f"width:{1.25 * width:.2f}em;height:{1.25 * height:.2f}em"
    start = f'<svg role="img" aria-label="{escape(tex)}" {view} style="{style}" fill="currentColor"'
    return f'{start} xmlns:xlink="http://www.w3.org/1999/xlink">{glyphs}</svg>'
