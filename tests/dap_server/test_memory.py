"""The bytes of tensors: read in parts, written through the history."""

from __future__ import annotations

import base64
from pathlib import Path

import ml_dtypes
import numpy as np

from nncdbg.dap_server.handlers.memory import MAX_READ
from nncdbg.ir.records import Array
from tests.dap_server import odd_values
from tests.dap_server.client import Client, Message


def reference_of(client: Client, expression: str) -> str:
    reference: str = client.request("evaluate", {"expression": expression})["memoryReference"]
    return reference


def read(client: Client, reference: str, count: int, offset: int | None = None) -> Message:
    arguments = {"memoryReference": reference, "count": count}
    return client.request("readMemory", arguments | ({} if offset is None else {"offset": offset}))


def data_of(answer: Message) -> bytes:
    return base64.b64decode(answer.get("data", ""))


BYTES: dict[str, Array] = {
    "%x": odd_values.X,
    '%"odd name"': odd_values.ODD,
    '%"größe/1"': np.float32(5),  # type: ignore[dict-item]
    "%narrow": odd_values.X.astype(ml_dtypes.bfloat16),
    "%small": odd_values.X.astype(ml_dtypes.int4),
    "%flags": odd_values.X > 0.5,
    "%turned": odd_values.X.T,
    "%empty": np.zeros((0, 3), np.float32),
}


def test_bytes_are_those_of_the_elements_in_c_order(client: Client, tmp_path: Path) -> None:
    odd_values.start(client, tmp_path)
    for expression, array in BYTES.items():
        reference, expected = reference_of(client, expression), np.asarray(array).tobytes()
        for offset in (0, 1, 3, len(expected)):
            for count in (0, 1, 5, len(expected), len(expected) + 7):
                answer = read(client, reference, count, offset)
                assert data_of(answer) == expected[offset : offset + count]
                assert int(answer["address"], 16) == int(reference, 16) + offset
                behind = count - len(data_of(answer))
                assert answer.get("unreadableBytes", 0) == behind, (expression, offset, count)
    for expression in ("%words", "%rows", "%x * 2"):
        assert "memoryReference" not in client.request("evaluate", {"expression": expression})


def test_addresses_support_offsets_and_stay_the_same(client: Client, tmp_path: Path) -> None:
    odd_values.start(client, tmp_path)
    reference, whole = reference_of(client, "%x"), odd_values.X.tobytes()
    assert data_of(read(client, hex(int(reference, 16) + 4), 4)) == whole[4:8]
    assert data_of(read(client, hex(int(reference, 16) + 8), 4, -4)) == whole[4:8]
    before = read(client, reference, 10, -4)
    assert (data_of(before), before["unreadableBytes"]) == (b"", 4)
    assert data_of(read(client, before["address"], 4, before["unreadableBytes"])) == whole[:4]
    client.move("stepBack")
    assert reference_of(client, "%x") == reference
    for wrong in ("", "x", "-1", "0x0", "0x10000000000", "99999999999999999999999", "1e3", "٣"):
        message = client.refused("readMemory", {"memoryReference": wrong, "count": 1})
        assert "memory reference" in message or "unknown or expired" in message, message
    assert "cannot read -1 bytes" in client.refused("readMemory", {"memoryReference": reference, "count": -1})
    recomputed = reference_of(client, "%twice")
    client.request("restart")
    client.expect_stop("breakpoint")
    assert data_of(read(client, recomputed, 4)) == np.float32(np.nan).tobytes()


def test_an_uncomputed_value_has_no_bytes(client: Client, tmp_path: Path) -> None:
    odd_values.start(client, tmp_path)
    reference = reference_of(client, "%twice")
    client.move("stepBack")
    client.move("stepBack")
    assert "not computed" in client.refused("readMemory", {"memoryReference": reference, "count": 1})
    arguments = {"memoryReference": reference, "data": "AA=="}
    assert "not computed" in client.refused("writeMemory", arguments)


def test_a_read_is_bounded_and_can_be_continued(client: Client, tmp_path: Path) -> None:
    (tmp_path / "large.nnc").write_text(
        "#nncdbg 1\nopset 18\n\ngraph @main(%x: u8[3000000]) -> (%y: u8[3000000]) {\n"
        "  %y: u8[3000000] = Identity(%x)\n  return %y\n}\n"
    )
    client.start("large.nnc", inputs={"x": "arange"}, initialize=odd_values.FLAGS)
    reference = reference_of(client, "%x")
    answer = read(client, reference, 10**12)
    assert len(data_of(answer)) == MAX_READ
    assert "unreadableBytes" not in answer
    rest = read(client, reference, 10**12, 2_999_990)
    assert len(data_of(rest)) == 10
    assert rest["unreadableBytes"] == 10**12 - 10


def test_written_bytes_are_an_edit(client: Client, tmp_path: Path) -> None:
    odd_values.start(client, tmp_path)
    reference = reference_of(client, '%"odd name"')
    read(client, reference, 1)
    value = base64.b64encode(np.array([1.5, np.nan], np.float32).tobytes()).decode()
    body = client.request("writeMemory", {"memoryReference": reference, "offset": 8, "data": value})
    assert body == {"offset": 0, "bytesWritten": 8}
    client.expect_event("invalidated", areas=["variables"])
    client.expect_event("memory", memoryReference=reference, offset=0, count=24)
    assert client.evaluate('%"odd name"') == "f32[2,3] [[nan inf 1.5] [nan -0. 3. ]]"
    assert client.evaluate("%twice[0, 2]") == "3.0", "dependent values are recomputed"
    assert "branch 1" in client.evaluate("mark", "repl")
    client.request("writeMemory", {"memoryReference": reference, "offset": 7, "data": "QA=="})
    assert data_of(read(client, reference, 4, 4)) == np.float32(np.inf).tobytes()[:3] + b"\x40"


def test_signalling_nan_and_scalars_keep_their_bits(client: Client, tmp_path: Path) -> None:
    odd_values.start(client, tmp_path)
    for expression, raw in {'%"größe/1"': b"\x01\x00\x80\x7f", "%narrow": b"\x81\x7f"}.items():
        reference = reference_of(client, expression)
        data = base64.b64encode(raw).decode()
        client.request("writeMemory", {"memoryReference": reference, "data": data})
        assert data_of(read(client, reference, len(raw))) == raw


def test_invalid_writes_are_refused_or_partial(client: Client, tmp_path: Path) -> None:
    odd_values.start(client, tmp_path)
    x = reference_of(client, "%x")
    four = base64.b64encode(bytes(4)).decode()
    for offset in (-2, 22, 24, 10**15):
        arguments = {"memoryReference": x, "offset": offset, "data": four}
        assert "are out of range: %x has" in client.refused("writeMemory", arguments)
    for offset, expected in {-2: (2, 2), 22: (0, 2), 24: (0, 0), 10**15: (0, 0), -9: (0, 0)}.items():
        arguments = {"memoryReference": x, "offset": offset, "data": four, "allowPartial": True}
        body = client.request("writeMemory", arguments)
        assert (body["offset"], body["bytesWritten"]) == expected, offset
    assert "base64" in client.refused("writeMemory", {"memoryReference": x, "data": "%%%"})
    assert client.request("writeMemory", {"memoryReference": x, "data": ""})["bytesWritten"] == 0
    flags, small = reference_of(client, "%flags"), reference_of(client, "%small")
    for reference, bad, good in ((flags, b"\x07", b"\x01"), (small, b"\x19", b"\x0f")):
        message = client.refused(
            "writeMemory", {"memoryReference": reference, "data": base64.b64encode(bad).decode()}
        )
        assert "these bytes are no" in message
        client.request("writeMemory", {"memoryReference": reference, "data": base64.b64encode(good).decode()})
    assert client.evaluate("%small[0, 0]") == "-1"
    assert client.evaluate("%flags[0, 0]") == "true"
