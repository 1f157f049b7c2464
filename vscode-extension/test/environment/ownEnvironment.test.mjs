// The extension's own Python environment, created by a real Python from a wheel without dependencies, and by
// scripts that replace Python.  No network.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { after, test } from "node:test";
import { bundled } from "../bundled.mjs";

const folder = mkdtempSync(path.join(tmpdir(), "nncdbg-"));
after(() => rmSync(folder, { recursive: true }));

const { Environment, NoPython, findPython } = await bundled("environment/ownEnvironment");

const WHEEL = `
import sys, zipfile
with zipfile.ZipFile(sys.argv[1], "w") as wheel:
    wheel.writestr("nncdbg/__init__.py", f"__version__ = {sys.argv[2]!r}\\n")
    info = f"nncdbg-{sys.argv[2]}.dist-info"
    wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\\nName: nncdbg\\nVersion: {sys.argv[2]}\\n")
    wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
    wheel.writestr(f"{info}/RECORD", "")
`;

let count = 0;

/** A folder with a wheel, and one for environments. */
function places(version = "1.0.0") {
  const place = path.join(folder, String(++count));
  mkdirSync(place);
  const wheel = path.join(place, `nncdbg-${version}-py3-none-any.whl`);
  execFileSync("python3", ["-I", "-c", WHEEL, wheel, version]);
  return { place, wheel, storage: path.join(place, "storage") };
}

/** A script that replaces Python: it logs its arguments and working folder, and runs the shell code `cases`. */
function script(name, cases) {
  const file = path.join(folder, name);
  writeFileSync(file, `#!/bin/sh\necho "$PWD $*" >> '${file}.log'\n${cases}\n`, { mode: 0o755 });
  return file;
}

const MAKES = `case "$3" in venv) mkdir -p "$4/bin"; cp "$0" "$4/bin/python";; esac`;
const reporter = () => {
  const lines = [];
  const steps = [];
  return { lines, steps, line: (text) => lines.push(text), step: (text) => steps.push(text) };
};

test("a real Python creates the environment, and ignores the workspace and PYTHONPATH", async () => {
  const { place, storage } = places();
  const workspace = path.join(folder, "workspace");
  mkdirSync(workspace);
  for (const name of ["pip.py", "venv.py", "sitecustomize.py", "usercustomize.py", "runpy.py", "nncdbg.py"]) {
    writeFileSync(path.join(workspace, name), 'print("owned")\n');
  }
  const before = process.cwd();
  process.chdir(workspace);
  process.env.PYTHONPATH = workspace;
  try {
    const environment = new Environment(place, storage);
    assert.equal(await environment.python(), undefined);
    const said = reporter();
    const python = await environment.install(await findPython([]), said);
    assert.equal(await environment.python(), python);
    assert.doesNotMatch(said.lines.join("\n"), /owned/);
    assert.ok(said.lines.includes("nncdbg 1.0.0"), said.lines.join("\n"));
    assert.equal(execFileSync(python, ["-I", "-c", "import nncdbg; print(nncdbg.__version__)"], { encoding: "utf8" }), "1.0.0\n");
    assert.deepEqual(said.steps.slice(0, 2), ["creating a Python environment", "downloading packages"]);
  } finally {
    process.chdir(before);
    delete process.env.PYTHONPATH;
  }
});

test("each command is isolated, and starts outside of a workspace", async () => {
  const { place, storage } = places();
  const python = script("isolated", MAKES);
  await new Environment(place, storage).install(python, reporter());
  const calls = readFileSync(`${python}.log`, "utf8").trim().split("\n");
  assert.equal(calls.length, 3, "venv, pip and the check; the copy notes them in the same file");
  assert.deepEqual(calls.filter((call) => !call.startsWith(`${storage} -I -`)), []);
});

test("a failed installation leaves no environment, and the reason is the last line", async () => {
  const { place, storage } = places();
  const python = script("fails", `${MAKES}\n[ "$3" = pip ] && { echo "ERROR: no matching distribution" >&2; exit 1; }\nexit 0`);
  const environment = new Environment(place, storage);
  await assert.rejects(environment.install(python, reporter()), /^Error: ERROR: no matching distribution$/);
  assert.equal(await environment.python(), undefined);
  assert.deepEqual(readdirSync(storage), []);
});

test("a cancelled installation leaves no environment", async () => {
  const { place, storage } = places();
  const python = script("slow", `${MAKES}\n[ "$3" = pip ] && exec sleep 60\nexit 0`);
  const abort = new AbortController();
  const said = reporter();
  const step = said.step;
  said.step = (text) => {
    step(text);
    if (text === "downloading packages") {
      setTimeout(() => abort.abort(), 50);
    }
  };
  await assert.rejects(new Environment(place, storage).install(python, said, abort.signal), { name: "AbortError" });
  assert.deepEqual(readdirSync(storage), []);
});

test("an incomplete environment, one of another wheel and one without its Python are replaced", async () => {
  const { place, wheel, storage } = places();
  const python = script("again", MAKES);
  const first = await new Environment(place, storage).install(python, reporter());
  rmSync(wheel);
  execFileSync("python3", ["-I", "-c", WHEEL, path.join(place, "nncdbg-1.1.0-py3-none-any.whl"), "1.1.0"]);
  // No process has this number: Linux has none above 4,194,304.
  mkdirSync(path.join(storage, "abandoned.partial-999999999"));
  mkdirSync(path.join(storage, `other.partial-${process.ppid}`));
  const newer = new Environment(place, storage);
  assert.equal(await newer.python(), undefined, "the wheel is another one");
  const second = await newer.install(python, reporter());
  assert.notEqual(second, first);
  assert.equal(existsSync(first), false);
  assert.deepEqual(readdirSync(storage).sort(), [path.relative(storage, second).split("/")[0], `other.partial-${process.ppid}`].sort());
  rmSync(second);
  symlinkSync("/nowhere/python", second);
  assert.equal(await newer.python(), undefined, "its base Python is gone");
  assert.equal(await newer.install(python, reporter()), second);
  assert.equal(await newer.python(), second);
});

test("the first Python that is new enough is used, and old ones are listed in the error", async () => {
  const old = script("old", 'echo "3.9.18 /opt/old/python3.9"');
  const two = script("two", 'echo "2.7.18 /opt/two/python"');
  const odd = script("odd", "exit 1");
  const fit = script("fit", 'echo "3.12.4 /opt/fit with blanks/python3"');
  assert.equal(await findPython([old, odd], [two, fit, "/nowhere/python"]), "/opt/fit with blanks/python3");
  await assert.rejects(findPython([old], [two, "/nowhere/python", old]), (error) => {
    assert.ok(error instanceof NoPython);
    const words = "nncdbg needs Python 3.11 or newer: found Python 3.9.18 at /opt/old/python3.9, Python 2.7.18 at /opt/two/python";
    assert.equal(error.message, words);
    return true;
  });
  await assert.rejects(findPython([], ["/nowhere/python"]), /3\.11 or newer: found none$/);
});
