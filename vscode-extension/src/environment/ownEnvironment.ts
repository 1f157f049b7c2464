// nncdbg's own Python environment, in a folder of the extension, with the wheel of this package.
// It is created under another name and renamed when it is complete.

import { spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { existsSync } from "node:fs";
import { mkdir, readFile, readdir, rename, rm } from "node:fs/promises";
import * as path from "node:path";
import { createInterface } from "node:readline";
import { ISOLATED, isRunning, runPython } from "./process";

/** The oldest minor version of Python 3 that nncdbg supports. */
const OLDEST = 11;
const PROBE = "import sys; print('.'.join(map(str, sys.version_info[:3])), sys.executable)";
const PARTIAL = /\.partial-(\d+)$/;
const NAMES = ["python3", "python3.14", "python3.13", "python3.12", "python3.11", "python"];
/** macOS starts programs from the Dock with a short PATH. */
const MAC_PYTHONS = ["/opt/homebrew/bin/python3", "/usr/local/bin/python3"];

/** No Python can create the environment; the message lists those that were found. */
export class NoPython extends Error {}

/** The path of the first Python that is new enough.  Throws `NoPython`. */
export async function findPython(first: string[], candidates = [...NAMES, ...MAC_PYTHONS]): Promise<string> {
  const old: string[] = [];
  for (const candidate of [...first, ...candidates]) {
    const [version, executable] = await probe(candidate);
    if (version && executable) {
      const [major = 0, minor = 0] = version.split(".").map(Number);
      if (major === 3 && minor >= OLDEST) {
        return executable;
      }
      old.push(`Python ${version} at ${executable}`);
    }
  }
  const found = old.length ? `found ${[...new Set(old)].join(", ")}` : "found none";
  throw new NoPython(`nncdbg needs Python 3.${OLDEST} or newer: ${found}`);
}

async function probe(candidate: string): Promise<string[]> {
  try {
    const { stdout } = await runPython(candidate, ["-c", PROBE]);
    return stdout.trim().split(/ (.*)/, 2);
  } catch {
    return []; // missing, or not a Python
  }
}

/** Receives the progress of an installation: each line of its log, and the current step. */
export interface Reporter {
  line(text: string): void;
  step(text: string): void;
}

export class Environment {
  private name: Promise<string> | undefined;

  /** `folder` has the wheel, `storage` the environments. */
  constructor(
    private readonly folder: string,
    private readonly storage: string,
  ) {}

  /** The Python of the environment for this wheel; undefined if it or its base Python is missing. */
  async python(): Promise<string | undefined> {
    const python = pythonIn(await this.path());
    return existsSync(python) ? python : undefined;
  }

  /** Creates the environment with `base`, and deletes others.  Returns its Python.  Throws if a command fails or on abort. */
  async install(base: string, reporter: Reporter, signal?: AbortSignal): Promise<string> {
    const target = await this.path();
    const partial = `${target}.partial-${process.pid}`;
    await mkdir(this.storage, { recursive: true });
    await this.clear((name) => path.basename(partial) === name || isAbandoned(name));
    try {
      reporter.step("creating a Python environment");
      await this.run(base, ["-m", "venv", partial], reporter, signal);
      reporter.step("downloading packages");
      const pip = ["-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--only-binary=:all:"];
      // The form "Run with" offers images, which need Pillow.
      await this.run(pythonIn(partial), [...pip, `${await this.wheel()}[images]`], reporter, signal);
      reporter.step("checking");
      await this.run(pythonIn(partial), ["-c", "import nncdbg; print('nncdbg', nncdbg.__version__)"], reporter, signal);
      await this.clear((name) => path.join(this.storage, name) === target);
      await rename(partial, target);
    } catch (error) {
      await rm(partial, { recursive: true, force: true });
      throw error;
    }
    await this.clear((name) => path.join(this.storage, name) !== target && !PARTIAL.test(name));
    return pythonIn(target);
  }

  private async clear(which: (name: string) => boolean): Promise<void> {
    const names = (await readdir(this.storage)).filter(which);
    await Promise.all(names.map((name) => rm(path.join(this.storage, name), { recursive: true, force: true })));
  }

  private async wheel(): Promise<string> {
    const name = (await readdir(this.folder)).find((each) => each.endsWith(".whl"));
    if (!name) {
      throw new Error(`the extension has no nncdbg wheel in ${this.folder}`);
    }
    return path.join(this.folder, name);
  }

  /** The folder of the environment: each wheel has its own. */
  private path(): Promise<string> {
    this.name ??= this.wheel()
      .then((wheel) => readFile(wheel))
      .then((content) => path.join(this.storage, createHash("sha256").update(content).digest("hex").slice(0, 16)));
    return this.name;
  }

  private run(python: string, args: string[], reporter: Reporter, signal?: AbortSignal): Promise<void> {
    reporter.line(`> ${python} ${[ISOLATED, ...args].join(" ")}`);
    // Not in the folder of a workspace, and without settings of pip that install elsewhere.
    const env = { ...process.env, PIP_USER: "0", PIP_REQUIRE_VIRTUALENV: "0" };
    const child = spawn(python, [ISOLATED, ...args], { cwd: this.storage, env, signal, stdio: ["ignore", "pipe", "pipe"] });
    let last = "";
    const reportLine = (text: string) => {
      last = /\S/.test(text) ? text.trim() : last;
      reporter.line(text);
      const package_ = /^(?:Downloading|Using cached) ([\w.]+)-\S+(?: \((.*)\))?/.exec(text.trim());
      if (package_) {
        reporter.step(`${package_[1]} ${package_[2] ?? ""}`.trim());
      } else if (/^Installing collected/.test(text)) {
        reporter.step("unpacking packages");
      }
    };
    [child.stdout, child.stderr].forEach((stream) => createInterface(stream).on("line", reportLine));
    return new Promise((resolve, reject) => {
      child.once("error", reject);
      child.once("close", (code) => (code === 0 ? resolve() : reject(new Error(last || `${python} ended with exit code ${code}`))));
    });
  }
}

function pythonIn(environment: string): string {
  return process.platform === "win32"
    ? path.join(environment, "Scripts", "python.exe")
    : path.join(environment, "bin", "python");
}

/** Whether the process that was creating an environment has ended. */
function isAbandoned(name: string): boolean {
  const pid = Number(PARTIAL.exec(name)?.[1]);
  return pid > 0 && !isRunning(pid);
}
