"""The animation in the extension's README."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from tests.vscode.animation import TARGET, write


def test_frames_keep_their_order_and_durations(tmp_path: Path) -> None:
    frames: list[dict[str, str | int]] = []
    for number, color in enumerate(("red", "green", "blue")):
        path = tmp_path / f"{number}.png"
        Image.new("RGB", (8, 6), color).save(path)
        frames.append({"file": str(path), "milliseconds": 100 * (number + 1)})
    write(frames, tmp_path / "a.gif")
    with Image.open(tmp_path / "a.gif") as made:
        assert getattr(made, "n_frames", 1) == 3
        made.seek(2)
        assert made.info["duration"] == 300
        assert made.convert("RGB").getpixel((0, 0)) == (0, 0, 255)


def test_the_animation_of_the_readme_has_frames_and_is_below_2_mb() -> None:
    assert TARGET.stat().st_size < 2_000_000
    with Image.open(TARGET) as animation:
        assert getattr(animation, "n_frames", 1) >= 5
