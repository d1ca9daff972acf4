"""Build the course site: `python docs/build_site.py FOLDER`. Needs no network, and neither does the site."""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from sphinx.cmd.build import build_main

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = ("README.md", "data/README.md", "docs/*.md", "docs/*.png", "docs/guides/*.md")
NOTEBOOKS = ("notebooks/*.ipynb", "notebooks/figures/*.svg", "release/*/*.ipynb")


def main() -> int:
    """Read the command line and build; return 0 if nothing gave a warning."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where the pages are written")
    folder = parser.parse_args().folder.resolve()
    sys.path.insert(0, str(ROOT))  # the reference is about the package of this checkout
    with tempfile.TemporaryDirectory() as scratch:
        sources = gathered_sources(Path(scratch) / "course")
        doctrees = Path(scratch) / "doctrees"
        options = ["-q", "-W", "--keep-going", "-n", "-E", "-b", "html"]
        return build_main([*options, "-c", str(DOCS), "-d", str(doctrees), str(sources), str(folder)])


def gathered_sources(folder: Path) -> Path:
    """Copy all that becomes a page into one folder, and return it.

    Each file keeps its path, so that links which work in the repository work here; only `index.md` moves to the top.
    """
    for pattern in (*PAGES, *NOTEBOOKS):
        for source in sorted(ROOT.glob(pattern)):
            copy = folder / source.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, copy)
    (folder / "docs" / "index.md").rename(folder / "index.md")
    reference = folder / "docs" / "reference.md"
    reference.write_text(_with_all_modules(reference.read_text()))
    return folder


def _with_all_modules(reference: str) -> str:
    """Return the page of the reference with the modules that it does not name added to its last list."""
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in sorted((ROOT / "transformer_lm").rglob("[!_]*.py"))
        if "checks" not in path.parts
    ]
    missing = [f"   {module}\n" for module in modules if f"   {module}\n" not in reference]
    listed, end, after = reference.rpartition("```")
    return "".join([listed, *missing, end, after])


if __name__ == "__main__":
    sys.exit(main())
