// Which Python runs nncdbg, and what is said where it cannot.
// Nothing is run in a workspace that is not trusted.

import { execFile } from "node:child_process";
import { promisify } from "node:util";
import * as vscode from "vscode";
import { installTerminal, requirementOf } from "./install";

const execute = promisify(execFile);

const PYTHON_EXTENSION = "ms-python.python";
const VERSION = ["-c", "import nncdbg; print(nncdbg.__version__)"];
const TIMEOUT = 20_000;

/** A module of the workspace must not stand in for one of Python's own, or for nncdbg. */
export const ENVIRONMENT = { PYTHONSAFEPATH: "1" };

interface PythonExtension {
  environments?: {
    getActiveEnvironmentPath(resource?: vscode.Uri): { path: string };
    onDidChangeActiveEnvironmentPath: vscode.Event<unknown>;
  };
}

/** What is missing where nncdbg cannot run; `install` is what pip would have to install, if that helps. */
export class Missing extends Error {
  constructor(
    message: string,
    readonly python: string,
    readonly install: string | undefined,
  ) {
    super(message);
  }
}

/** The setting, else what the Python extension has selected, else `python3`. */
export async function pythonOf(resource: vscode.Uri | undefined): Promise<string> {
  const setting = vscode.workspace.getConfiguration("nncdbg", resource).get<string>("python");
  if (setting) {
    return setting;
  }
  const environments = (await pythonExtension())?.environments;
  return environments?.getActiveEnvironmentPath(resource).path || "python3";
}

async function pythonExtension(): Promise<PythonExtension | undefined> {
  const extension = vscode.extensions.getExtension<PythonExtension>(PYTHON_EXTENSION);
  return extension && (extension.isActive ? extension.exports : extension.activate());
}

/** Tells when another Python may be the one: the setting, or what the Python extension has selected. */
export async function onPythonChange(changed: () => void): Promise<vscode.Disposable> {
  const listeners = [
    vscode.workspace.onDidChangeConfiguration((event) => event.affectsConfiguration("nncdbg.python") && changed()),
  ];
  const environments = (await pythonExtension())?.environments;
  if (environments) {
    listeners.push(environments.onDidChangeActiveEnvironmentPath(changed));
  }
  return vscode.Disposable.from(...listeners);
}

/** The Python for a resource, in which nncdbg was found.  Throws `Missing`. */
export async function pythonWithNncdbg(resource: vscode.Uri | undefined): Promise<string> {
  if (!vscode.workspace.isTrusted) {
    throw new Missing("nncdbg runs nothing in a workspace that is not trusted", "", undefined);
  }
  const python = await pythonOf(resource);
  warnOfOtherVersion(python, await versionOf(python));
  return python;
}

async function versionOf(python: string): Promise<string> {
  try {
    return (await run(python, VERSION)).stdout.trim();
  } catch (error) {
    const { code, stderr } = error as NodeJS.ErrnoException & { stderr?: string };
    if (code === "ENOENT" || code === "EACCES") {
      throw new Missing(`there is no Python at ${python}`, python, undefined);
    }
    if (stderr?.includes("No module named 'nncdbg'")) {
      throw new Missing(`nncdbg is not installed for ${python}`, python, packageSetting());
    }
    const why = stderr?.trim().split("\n").at(-1) || String(error);
    throw new Missing(`nncdbg does not start with ${python}: ${why}`, python, undefined);
  }
}

/** Runs a Python to its end.  Throws what `execFile` throws, with `stderr`. */
export function run(python: string, args: string[], cwd?: string): Promise<{ stdout: string; stderr: string }> {
  return execute(python, args, { cwd, timeout: TIMEOUT, env: { ...process.env, ...ENVIRONMENT } });
}

const warned = new Set<string>();

function warnOfOtherVersion(python: string, found: string): void {
  const mine = extensionVersion();
  const key = `${python} ${found}`;
  if (found === mine || warned.has(key)) {
    return;
  }
  warned.add(key);
  const words = `nncdbg ${found} is installed for ${python}, and this extension is made for ${mine}; some of it may not work.`;
  void offer(vscode.window.showWarningMessage, new Missing(words, python, packageSetting()));
}

function packageSetting(): string | undefined {
  return requirementOf(vscode.workspace.getConfiguration("nncdbg").get<string>("package"));
}

function extensionVersion(): string {
  return vscode.extensions.getExtension("nncdbg.nncdbg")?.packageJSON.version;
}

/** Says what is missing, with what can be done about it. */
export async function offer(show: typeof vscode.window.showErrorMessage, missing: Missing): Promise<void> {
  const install = missing.install && `Install ${missing.install}`;
  const select = missing.python && "Select Python";
  const chosen = await show(missing.message, ...[install, select].filter((each) => !!each).map(String));
  if (chosen && chosen === install) {
    vscode.window.createTerminal(installTerminal(missing.python, missing.install as string)).show();
  } else if (chosen) {
    await selectPython();
  }
}

export async function selectPython(): Promise<void> {
  if (vscode.extensions.getExtension(PYTHON_EXTENSION)) {
    await vscode.commands.executeCommand("python.setInterpreter");
  } else {
    await vscode.commands.executeCommand("workbench.action.openSettings", "nncdbg.python");
  }
}
