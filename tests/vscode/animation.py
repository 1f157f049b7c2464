"""Make the pictures of the extension's README in VS Code: `python -m tests.vscode.animation`.

The still pictures are those that the editor tests saved in `pictures/`.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image

from tests.vscode.installed import FOLDER, ROOT, VSIX, missing, run_script

MEDIA = ROOT / "vscode-extension" / "media" / "pictures"
TARGET = MEDIA / "watch.gif"
STILLS = {
    "nan.png": "exception",
    "statistics.png": "statistics-loop",
    "map.png": "graph-dark",
    "tensor.png": "tensor-dark",
}
"""Pictures of the README, and the pictures of the tests that they are copied from."""
_COLORS = 64


def main() -> int:
    """Write the pictures and return the exit code."""
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
        returned, output = run_script(FOLDER / "animation.mjs", scratch / "plan.json")
        if returned or not result.is_file():
            print(f"error: the editor did not play to the end:\n{output}", file=sys.stderr)
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
