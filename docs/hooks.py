"""Of the site: pages link to files of the repository as they lie beside docs/, and the site gets a copy of each."""

import re
from pathlib import Path

from mkdocs.structure.files import File

_LINK = re.compile(r"\]\(\.\./([^)#]+)")


def on_files(files, config):
    docs = Path(config.docs_dir)
    linked = {path for page in docs.glob("*.md") for path in _LINK.findall(page.read_text(encoding="utf-8"))}
    for path in sorted(linked):
        files.append(File.generated(config, f"repository/{path}", abs_src_path=str(docs.parent / path)))
    return files


def on_page_markdown(markdown, **_):
    return _LINK.sub(r"](repository/\1", markdown)
