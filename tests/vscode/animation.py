"""Makes the pictures in the extension's README from a real VS Code: `python -m tests.vscode.animation`.

The still ones are those that the tests of the editor have left in `pictures/`.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image

from tests.vscode.installed import FOLDER, ROOT, VSIX, end_of, missing

MEDIA = ROOT / "vscode-extension" / "media" / "pictures"
TARGET = MEDIA / "watch.gif"
STILLS = {
    "nan.png": "exception",
    "statistics.png": "statistics-loop",
    "map.png": "graph-dark",
    "tensor.png": "tensor-dark",
}
"""The pictures of the README, and those of the tests that they are."""
_COLORS = 64


def main() -> int:
    """Write the animation; the exit code."""
    reason = missing()
    if reason is not None:
        print(f"error: {reason}", file=sys.stderr)
        return 3
    absent = [each for each in STILLS.values() if not (FOLDER / "pictures" / f"{each}.png").is_file()]
    if absent:
        print(f"error: no {', '.join(absent)} in pictures/; `make e2e-editor` takes them", file=sys.stderr)
        return 3
    for name, source in STILLS.items():
        picture = Image.open(FOLDER / "pictures" / f"{source}.png").convert("RGB")
        picture.save(MEDIA / name, optimize=True)
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        workspace = scratch / "models"
        workspace.mkdir()
        shutil.copy(ROOT / "examples" / "nan_softmax.nnc", workspace)
        result = scratch / "frames.json"
        plan = {
            "scratch": name,
            "workspace": str(workspace),
            "vsix": str(VSIX),
            "python": sys.executable,
            "result": str(result),
        }
        (scratch / "plan.json").write_text(json.dumps(plan))
        returned, said = end_of(FOLDER / "animation.mjs", scratch / "plan.json")
        if returned or not result.is_file():
            print(f"error: the editor did not play to the end:\n{said}", file=sys.stderr)
            return 4
        write(json.loads(result.read_text(encoding="utf-8")), TARGET)
    print(f"{TARGET.relative_to(ROOT)}: {TARGET.stat().st_size >> 10} KiB")
    return 0


def write(frames: list[dict[str, str | int]], target: Path) -> None:
    """Write frames, each with the `file` of a picture and its `milliseconds`, as an animated GIF."""
    pictures = [Image.open(str(each["file"])).convert("RGB").quantize(_COLORS) for each in frames]
    durations = [int(each["milliseconds"]) for each in frames]
    first, *others = pictures
    first.save(target, save_all=True, append_images=others, duration=durations, loop=0, optimize=True)


if __name__ == "__main__":
    sys.exit(main())
