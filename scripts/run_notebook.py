"""Executes a notebook without Jupyter and stores what its cells print and draw: run_notebook.py NOTEBOOK."""

from __future__ import annotations

import base64
import io
import json
import os
import sys
import tempfile
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt


def executed(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook with new outputs: its code cells run from top to bottom in one namespace."""
    plt.close("all")
    namespace: dict[str, Any] = {"__name__": "__main__"}
    count, cells = 0, []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            count += 1
            outputs = _outputs("".join(cell["source"]), f"<cell {count}>", namespace)
            cell = {**cell, "execution_count": count, "outputs": outputs}
        cells.append(cell)
    return {**notebook, "cells": cells}


def _outputs(source: str, name: str, namespace: dict[str, Any]) -> list[dict[str, Any]]:
    with redirect_stdout(io.StringIO()) as printed:
        exec(compile(source, name, "exec"), namespace)  # noqa: S102 - the notebook is a script of ours
    text = printed.getvalue()
    stream = {"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)}
    return [*([stream] if text else []), *map(_drawn, plt.get_fignums())]


def _drawn(number: int) -> dict[str, Any]:
    figure, picture = plt.figure(number), io.BytesIO()
    # Without its default metadata, the picture does not change with the version of matplotlib alone.
    figure.savefig(picture, format="png", dpi=80, metadata={"Software": None})
    plt.close(figure)
    data = {"image/png": base64.b64encode(picture.getvalue()).decode()}
    return {"data": data, "metadata": {}, "output_type": "display_data"}


if __name__ == "__main__":
    path = Path(sys.argv[1]).resolve()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        notebook = executed(json.loads(path.read_text(encoding="utf-8")))
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{path.name}: {time.monotonic() - begun:.1f} s")
