"""Verdicts on trainings that learn nothing or diverge without a NaN, and none on trainings that learn."""

from __future__ import annotations

import re

import pytest

import nncdbg
from nncdbg.nan_watch.measuring.gates import USUAL as GATES
from nncdbg.nan_watch.records import Report

PROGRAM = """#nncdbg 1
opset 21
state %w1: f32[4,16] = RandomNormal(scale=WIDTH, seed=1.0, shape=[4,16])
state %w2: f32[16,OUT] = RandomNormal(scale=WIDTH, seed=2.0, shape=[16,OUT])
state %w1.m: f32[4,16] = zeros for %w1
state %w1.v: f32[4,16] = zeros for %w1
state %w2.m: f32[16,OUT] = zeros for %w2
state %w2.v: f32[16,OUT] = zeros for %w2
state %step: i64[] = 0
state %rule: f32[4,OUT] = RandomNormal(seed=9.0, shape=[4,OUT])

graph @train() -> (%l: f32[], %score: f32[32,OUT], %label: TARGET) {
  %x: f32[32,4] = RandomNormal(shape=[32,4])
  %product: f32[32,OUT] = MatMul(%x, %rule)
  LABEL
  %l: f32[], %score: f32[32,OUT], saved %s = @loss(%x, %label)
  %d_w1: f32[4,16], %d_w2: f32[16,OUT] = @loss.backward(SIGN, _, %s)
  %t: f64[] = Cast(%step, to=11)
  RATE
  STEP1
  STEP2
  %step.1: i64[] = Add(%step, 1)
  update %step = %step.1
  return %l, %score, %label
}

graph @loss(%x: f32[32,4], %label: TARGET) -> (%l: f32[], %score: f32[32,OUT]) {
  %h: f32[32,16] = MatMul(%x, %w1)
  ACTIVE
  %raw: f32[32,OUT] = MatMul(%a, %w2)
  %score: f32[32,OUT] = Mul(%raw, GAIN)
  LOSS
  return %l, %score
}

backward @loss.backward of @loss by (%w1, %w2)

run @train steps STEPS
TRACK
"""

SGD = "%@.1 = nncdbg.SGD(%@, %d_@, _, _, %rate); update %@ = %@.1"
MOMENTUM = (
    "%@.1, %@.m.1 = nncdbg.SGD(%@, %d_@, %@.m, _, %rate, momentum=0.9); update %@ = %@.1, %@.m = %@.m.1"
)
ADAM = (
    "%@.1, %@.m.1, %@.v.1, _ = nncdbg.Adam(%@, %d_@, %@.m, %@.v, %step, _, %rate);"
    " update %@ = %@.1, %@.m = %@.m.1, %@.v = %@.v.1"
)
ADAMW = ADAM.replace("nncdbg.Adam", "nncdbg.AdamW").replace("%rate)", "%rate, weight_decay=0.01)")
RMSPROP = "%@.1, %@.v.1 = nncdbg.RMSProp(%@, %d_@, %@.v, _, _, %rate); update %@ = %@.1, %@.v = %@.v.1"
BY_HAND = "%@.r: f32[] = Cast(%rate, to=1); %@.d = Mul(%d_@, %@.r); %@.1 = Sub(%@, %@.d); update %@ = %@.1"
ASCENT = BY_HAND.replace("Sub(", "Add(")

CLASSES = {
    "OUT": "3",
    "TARGET": "i64[32]",
    "LABEL": "%label: i64[32] = ArgMax(%product, axis=1, keepdims=0)",
    "LOSS": "%l: f32[] = SoftmaxCrossEntropyLoss(%score, %label)",
    "TRACK": "track acc = mean(argmax(%score, 1) == %label)",
}
LINE = {
    "OUT": "1",
    "TARGET": "f32[32,1]",
    "LABEL": "%label: f32[32,1] = Identity(%product)",
    "LOSS": "%e = Sub(%score, %label); %q = Mul(%e, %e); %l: f32[] = ReduceMean(%q, keepdims=0)",
    "TRACK": "",
}
USUAL = {
    "SIGN": "1.0",
    "GAIN": "1.0",
    "WIDTH": "0.3",
    "STEPS": "80",
    "RATE": "0.1",
    "STEP": SGD,
    "ACTIVE": "%a: f32[32,16] = Tanh(%h)",
}
RANDOM_LABELS = "%u = RandomUniform(high=3.0, shape=[32]); %label: i64[32] = Cast(%u, to=7)"
COSINE = (
    "%f: f64[] = Div(%t, 79.0); %g: f64[] = Mul(%f, 3.141592653589793); %c: f64[] = Cos(%g);"
    " %o: f64[] = Add(%c, 1.0); %rate: f64[] = Mul(%o, 0.1)"
)
BY_LOGARITHM = (
    "%p = LogSoftmax(%score); %k = OneHot(%label, 3, [HOT]); %z = Mul(%p, %k); %r = ReduceSum(%z, [1]);"
)
LABEL_LOSS = BY_LOGARITHM + "%n = Neg(%r); %l: f32[] = ReduceMean(%n, keepdims=0)"
LINEAR = "%f: f64[] = Div(%t, 40.0); %g: f64[] = Sub(1.0, %f); %rate: f64[] = Mul(%g, 0.1)"
LOGARITHM = COSINE.replace("%rate: f64[] = Mul(%o, 0.1)", "%b: f64[] = Log(%o); %rate: f64[] = Mul(%b, 0.1)")
WITHOUT_SQUARE = (
    "%m = ReduceMean(%h, [0], keepdims=0); %c = Sub(%h, %m); %v = ReduceMean(%c, [0], keepdims=0);"
    " %one = ConstantOfShape([16], value=f32[1] [1.0]); %zero = ConstantOfShape([16]);"
    " %a: f32[32,16] = BatchNormalization(%h, %one, %zero, %m, %v)"
)
GROWING = "%one: f64[] = 1.12; %f: f64[] = Pow(%one, %t); %rate: f64[] = Mul(%f, 0.02)"
NOISE = "%noise = RandomNormal(shape=[32,1]); %label: f32[32,1] = Mul(%noise, 2.0)"
LIKELIHOOD = (
    "%e = Sub(%score, %label); %q = Mul(%e, %e); %m = ReduceMean(%q, keepdims=0); %o = Add(%m, 0.001);"
    " %l: f32[] = Log(%o)"
)

FAULTY: dict[str, tuple[str, dict[str, str]]] = {
    "negative rate of SGD": ("negative learning rate", CLASSES | {"RATE": "-0.01"}),
    "linear schedule beyond its end": ("negative learning rate", CLASSES | {"RATE": LINEAR}),
    "linear schedule of Adam beyond its end": (
        "negative learning rate",
        LINE | {"RATE": LINEAR, "STEP": ADAM},
    ),
    "schedule by a logarithm": ("negative learning rate", CLASSES | {"RATE": LOGARITHM.replace("79", "85")}),
    "schedule that stays at 0": (
        "learning rate of 0",
        CLASSES
        | {
            "RATE": LINEAR.replace("%rate: f64[] = Mul(%g", "%h: f64[] = Max(%g, 0.0); %rate: f64[] = Mul(%h")
        },
    ),
    "constant rate of 0": ("learning rate of 0", CLASSES | {"RATE": "0.0", "STEP": MOMENTUM}),
    "outputs multiplied by 0": ("no progress", CLASSES | {"GAIN": "0.0"}),
    "rate far too small": ("no progress", LINE | {"RATE": "1e-9"}),
    "update in the wrong direction": ("loss diverges", LINE | {"RATE": "0.01", "STEP": ASCENT}),
    "classifier in the wrong direction": ("loss diverges", CLASSES | {"RATE": "0.1", "STEP": ASCENT}),
    "rate that grows": ("loss diverges", LINE | {"RATE": GROWING, "STEP": ADAM}),
    "rate of Adam that grows": ("loss diverges", CLASSES | {"RATE": GROWING, "STEP": ADAM, "TRACK": ""}),
    "random labels": ("accuracy at chance", CLASSES | {"LABEL": RANDOM_LABELS}),
    "random labels without a track": ("loss at chance", CLASSES | {"LABEL": RANDOM_LABELS, "TRACK": ""}),
    "inverted labels": ("accuracy at chance", CLASSES | {"LOSS": LABEL_LOSS.replace("HOT", "0.9, 0.05")}),
    "lost sign of the loss": (
        "accuracy at chance",
        CLASSES
        | {"LOSS": LABEL_LOSS.replace("HOT", "0.0, 1.0").replace("Neg(", "Identity("), "RATE": "0.01"},
    ),
    "initial weights far too large": ("first loss too large", CLASSES | {"WIDTH": "30.0"}),
    "outputs far too large": (
        "first loss too large",
        CLASSES | {"GAIN": "100.0", "RATE": "0.00001", "LOSS": LABEL_LOSS.replace("HOT", "0.0, 1.0")},
    ),
}

CLEAN: dict[str, dict[str, str]] = {
    "classifier by SGD": CLASSES,
    "classifier by momentum": CLASSES | {"STEP": MOMENTUM, "RATE": "0.03"},
    "classifier by Adam": CLASSES | {"STEP": ADAM, "RATE": "0.01"},
    "classifier by AdamW": CLASSES | {"STEP": ADAMW, "RATE": "0.01"},
    "classifier by RMSprop": CLASSES | {"STEP": RMSPROP, "RATE": "0.003"},
    "classifier by hand": CLASSES | {"STEP": BY_HAND},
    "classifier with a loss by hand": CLASSES | {"LOSS": LABEL_LOSS.replace("HOT", "0.0, 1.0")},
    "classifier with smoothed labels": CLASSES | {"LOSS": LABEL_LOSS.replace("HOT", "0.05, 0.9")},
    "classifier with random labels in few steps": CLASSES | {"LABEL": RANDOM_LABELS, "STEPS": "15"},
    "classifier without a start": CLASSES | {"RATE": "1e-5", "STEPS": "30"},
    "regression by SGD": LINE,
    "regression by Adam": LINE | {"STEP": ADAM, "RATE": "0.01"},
    "regression of noise": LINE | {"LABEL": NOISE, "RATE": "0.01"},
    "regression that maximizes its negative": LINE
    | {
        "SIGN": "-1.0",
        "LOSS": LINE["LOSS"].replace("%l: f32[] = ReduceMean(%q", "%m = ReduceMean(%q")
        + "; %l: f32[] = Neg(%m)",
    },
    "regression with a negative loss": LINE | {"LOSS": LIKELIHOOD, "RATE": "0.01"},
    "cosine that ends at 0": LINE | {"RATE": COSINE},
    "warm-up from 0": CLASSES | {"RATE": "%f: f64[] = Div(%t, 200.0); %rate: f64[] = Min(%f, 0.1)"},
    "converged from the start": LINE | {"LABEL": "%label: f32[32,1] = Mul(%product, 0.0)", "WIDTH": "0.001"},
    "a rate that is high but stable": LINE | {"RATE": "0.3"},
    "negative rate in two steps": CLASSES | {"STEPS": "2"},
}


def _watch(changes: dict[str, str], fail_on: str | tuple[str, ...] = GATES, program: str = PROGRAM) -> Report:
    parts = USUAL | changes
    if re.fullmatch(r"[-.e\d]+", parts["RATE"]):
        parts["RATE"] = f"%rate: f64[] = Add(%zero, {parts['RATE']})"
        parts["RATE"] = "%zero: f64[] = Mul(%t, 0.0);" + parts["RATE"]
    step = parts.pop("STEP")
    parts |= {"STEP1": step.replace("@", "w1"), "STEP2": step.replace("@", "w2")}
    names = "|".join(parts)
    text = re.sub(rf"\b({names})\b", lambda match: parts[match[0]].replace(";", "\n"), program)
    return nncdbg.watch(nncdbg.parse(text), fail_on=fail_on)


def _verdicts(report: Report) -> list[str]:
    assert report.error is None
    return [each.verdict for each in report.findings if each.kind == "training"]


@pytest.mark.parametrize(("verdict", "changes"), FAULTY.values(), ids=FAULTY)
def test_a_training_that_learns_nothing_has_a_verdict(verdict: str, changes: dict[str, str]) -> None:
    report = _watch(changes)
    assert _verdicts(report) == [verdict]
    found = next(each for each in report.findings if each.kind == "training")
    assert found.evidence.startswith(f"{verdict}: ")
    assert found.hint
    assert (found.is_warning, report.ok) == (True, True)


@pytest.mark.parametrize("changes", CLEAN.values(), ids=CLEAN)
def test_a_training_that_learns_has_no_verdict(changes: dict[str, str]) -> None:
    assert _verdicts(_watch(changes)) == []


def test_the_gate_trips() -> None:
    report = _watch(FAULTY["random labels"][1], fail_on="training")
    assert [(each.kind, each.trips) for each in report.findings] == [("training", True)]
    assert report.exit_code == 1


def test_a_gate_that_cannot_judge_says_so() -> None:
    few = _watch(CLEAN["classifier with random labels in few steps"], fail_on="training")
    assert few.unchecked == ["training: @train ran 15 steps, fewer than 20"]
    graph = "graph @main() -> (%y) {\n  %y = Add(1.0, 2.0)\n  return %y\n}\n"
    without = nncdbg.watch(nncdbg.parse(graph), fail_on="training")
    assert [(each.check, each.result) for each in without.checks] == [("training", "not applicable")]


def test_a_variance_without_a_square_is_named_as_the_cause() -> None:
    report = _watch(
        CLASSES | {"ACTIVE": WITHOUT_SQUARE, "LOSS": LABEL_LOSS.replace("HOT", "0.02, 0.96"), "STEP": ADAM}
    )
    assert [(each.kind, each.verdict or each.cause) for each in report.findings] == [
        ("contract", "negative variance")
    ]


def test_the_gradient_norms_of_a_run_with_an_evaluation_are_those_of_its_graph() -> None:
    text = PROGRAM.replace("TRACK", "evaluate @test")
    text += "\ngraph @test() -> (%n: f32[]) {\n  %n: f32[] = ReduceMean(%w1, keepdims=0)\n  return %n\n}\n"
    (history,) = _watch(CLASSES | {"STEPS": "25"}, program=text).training
    assert all(each > 0 for each in history.parameters[0].gradient_norms)
